"""The section "Usage" of LargeQueue's README, line by line.

Three lines differ: the imports, and the address of the server.
"""

import sys

from tests.support.large_queue import ASAborted, LargeQueue

QUEUE_MAX_SIZE = 1000
ENTRIES_PER_REC = 100
client = sys.argv[1]
msg_queue = LargeQueue()
try:
    msg_queue.initialize_existing_queue(client, "test", "shared-msg-bus")
except ASAborted as ex:  # noqa: F841 # as in the README
    msg_queue.create_new_queue(client, "test", "shared-msg-bus", QUEUE_MAX_SIZE, ENTRIES_PER_REC)

# add two messages to the queue
# note txn-id is used as lock owner id, and needs only to be unique across all active clients
# here we can use the same txn_id in the following operations
txn_id = 1
msg = {"msg-id": 100, "msg-text": "The school is closed for summer."}
try:
    offset = msg_queue.enqueue(msg, txn_id)
    print("message 100 added at offset {}".format(offset))  # noqa: UP032 # as in the README
except ASAborted as ex:
    print("enqueue failed, reason: {}".format(ex.reason))  # noqa: UP032

msg = {"msg-id": 101, "msg-text": "Have a nice summer!"}
try:
    offset = msg_queue.enqueue(msg, txn_id)
    print("message 101 added at offset {}".format(offset))  # noqa: UP032
except ASAborted as ex:
    print("enqueue failed, reason: {}".format(ex.reason))  # noqa: UP032

# get info
q_info = msg_queue.get_queue_info()
print("queue status: {}".format(q_info))  # noqa: UP032

# get the msg at a specific offset
offset = q_info["head-offset"] + 1
msg_entry = msg_queue.get_entry_at_offset(offset)
print("entry at offset {}: {}".format(offset, msg_entry))  # noqa: UP032

# dequeue from head of the queue
try:
    msg_entry = msg_queue.dequeue(txn_id)
    print("dequeued entry: {}".format(msg_entry))  # noqa: UP032
except ASAborted as ex:
    print("dequeue failed, reason: {}".format(ex.reason))  # noqa: UP032

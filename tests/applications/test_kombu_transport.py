"""The transport for kombu, without Celery."""

import pytest

from tests.applications.conftest import SetUp
from tests.applications.test_task_queues import CELERY
from tests.support.installed_applications import Stand

_BEGIN = """
import os
import socket
from contextlib import suppress

from kombu import Connection, Consumer, Exchange, Queue

import pressure_server.client.kombu

URL = f"pressure://127.0.0.1:{os.environ['QUEUE_PORT']}"
"""


@pytest.fixture
def stand(set_up: SetUp) -> Stand:
    return set_up(CELERY)


def _printed(stand: Stand, program: str) -> list[str]:
    """Run a program that uses kombu, and return the lines that it prints."""
    ended = stand.run("python", "-c", _BEGIN + program)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout.splitlines()


def test_a_channel_that_cannot_connect_keeps_no_id(stand: Stand) -> None:
    assert _printed(stand, _UNREACHABLE) == ["0"]


_UNREACHABLE = """
with Connection("pressure://127.0.0.1:1") as connection:
    for _ in range(3):
        with suppress(connection.connection_errors):
            connection.transport.establish_connection()
    print(len(connection.transport._used_channel_ids))
"""


def test_a_message_that_needs_no_acknowledgement_is_taken_once(stand: Stand) -> None:
    assert _printed(stand, _NO_ACK) == ["consumed 0", "consumed 1", "got 2", "left 0"]


_NO_ACK = """
with Connection(URL) as connection:
    simple = connection.SimpleBuffer("mails")
    for number in range(3):
        simple.put(number)
    for _ in range(2):
        print("consumed", simple.get(timeout=10).payload)
    simple.close()
with Connection(URL) as connection:
    queue = Queue("mails")(connection.channel())
    print("got", queue.get(no_ack=True).payload)
with Connection(URL) as connection:
    print("left", Queue("mails")(connection.channel()).queue_declare(passive=True).message_count)
"""


def test_a_message_ends_on_the_channel_that_has_reserved_it(stand: Stand) -> None:
    assert _printed(stand, _TWO_CHANNELS) == ["done [0, 1, 2, 3, 4, 5]", "done alone [6, 7]", "left 0"]


_TWO_CHANNELS = """
queue = Queue("work")
done = []


def work(body, message):
    done.append(body)
    message.ack()


with Connection(URL) as connection:
    producer = connection.Producer()
    for number in range(6):
        producer.publish(number, routing_key="work", declare=[queue])
    consumers = [Consumer(connection.channel(), [queue], callbacks=[work]) for _ in range(2)]
    for consumer in consumers:
        consumer.consume()
    while len(done) < 6:
        connection.drain_events(timeout=10)
    print("done", sorted(done))
    consumers[1].cancel()
    for number in (6, 7):
        producer.publish(number, routing_key="work")
    while len(done) < 8:
        connection.drain_events(timeout=10)
    print("done alone", done[6:])
with Connection(URL) as connection:
    print("left", queue(connection.channel()).queue_declare(passive=True).message_count)
"""


def test_a_message_that_no_queue_would_get_is_an_error(stand: Stand) -> None:
    assert _printed(stand, _UNBOUND) == [
        "tasks: ChannelError 312", "logs: ChannelError 312",
        "exchange 'logs' has no queue for routing key 'a.error' on this connection", "transient", "left 1",
    ]  # fmt: skip


_UNBOUND = """
exchanges = [Exchange("tasks", type="direct"), Exchange("logs", type="topic")]
queues = [Queue(f"{exchange.name}-queue", exchange, routing_key="a.error") for exchange in exchanges]
with Connection(URL) as worker, Connection(URL) as client:
    for queue in queues:
        queue(worker.channel()).declare()
    producer = client.Producer()
    for exchange in exchanges:
        try:
            producer.publish(1, exchange=exchange, routing_key="a.error", declare=[exchange])
        except client.channel_errors as error:
            print(f"{exchange.name}: {type(error).__name__} {error.reply_code}")
            text = str(error)
    print(text[text.index("exchange"):text.index(":", text.index("exchange"))])
    producer.publish(1, exchange=exchanges[1], routing_key="a.error", delivery_mode="transient")
    print("transient")
    producer.publish(1, exchange=exchanges[0], routing_key="a.error", declare=[queues[0]])
    print("left", sum(queue(worker.channel()).queue_declare(passive=True).message_count for queue in queues))
"""

"""What the library says of a queue (lua/core/info.lua)."""

from typing import NamedTuple


class QueueInfo(NamedTuple):
    """A queue at one moment, in the order of the library's reply."""

    bound: int
    length: int
    is_closed: int
    producer_is_free: int
    producer: bytes  # the present or last holder of the role
    consumer_is_free: int
    consumer: bytes
    produced: int
    produced_bytes: int
    consumed: int
    consumed_bytes: int
    overflow: bytes
    type: bytes
    ready: int
    delayed: int
    reserved: int
    buried: int
    paused: int  # milliseconds
    urgent: int  # ready jobs of a priority below 1024
    unique: bytes
    max_deliveries: int  # 0 for no limit
    dead_letter: bytes  # a base key, empty for none
    timeouts: int  # of reservations
    dropped: int  # messages, to make room for others
    head: bytes  # the offset of a log's oldest message; empty if this is no log
    tail: bytes
    groups: int
    log: bytes  # the base key of the log that this group reads; empty if this is no group's queue
    missed: int
    max_bytes: int  # 0 for no limit
    ack: bytes  # next, or empty
    ack_ttr: int  # milliseconds; 0 for no limit
    retry_delay: int  # milliseconds; 0 for none, as for the next three
    retry_delay_max: int
    in_flight: int
    rate: bytes  # `count milliseconds`, or empty
    ttl: int  # milliseconds; 0 for none of its own

"""Placement: which shard a name leads to, and how the keys of the shards begin."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from pressure_server.queues.names import base_key, is_queue_name
from pressure_server.queues.placement import MOST_SHARDS, Placement

SLOTS = 1 << 14
# Stored data depend on both: after a change, the queues of a cluster are no longer found.
TAGS_OF_16 = (460, 570, 640, 750, 3120, 130, 200, 310, 716, 606, 536, 426, 356, 246, 176, 2687)
SHARDS_OF_16 = {
    b"": 0, b"mails": 9, b"default": 6, b"a": 7, b"b": 4, b"log": 15, b"\xff\x00": 15, b"{a": 4, b"{}x": 3,
    b"{mails}1": 9, b"1{mails}": 9, b"{a}{b}": 7, b"a{b}+c": 4, b"log+g": 15, b"a+b+c": 7, b"a+{b}": 7,
}  # fmt: skip

TOGETHER = {
    (b"mails", b"mails"): True, (b"{a}*", b"{a}failed"): True, (b"x{a}?", b"{a}"): True,
    (b"{a}[x", b"a"): True, (b"mails", b"failed"): False, (b"*", b"failed"): False,
    (b"*{a}", b"{a}failed"): False,
    (b"{a*}", b"{a}"): False, (b"{a}*", b"{b}failed"): False, (b"x+{a}*", b"{a}"): False,
}  # fmt: skip

names = st.binary(max_size=30).filter(is_queue_name)
tags = st.binary(min_size=1, max_size=10).filter(lambda tag: not set(tag) & set(b"{}+"))
counts = st.integers(1, MOST_SHARDS)


def test_16_shards_have_the_prefixes_and_queues_of_stored_data() -> None:
    placement = Placement(b"p", 16)
    assert placement.prefixes == [b"p:{%d}" % tag for tag in TAGS_OF_16]
    assert {name: placement.shard_of(name) for name in SHARDS_OF_16} == SHARDS_OF_16


def test_a_pattern_tells_whether_all_its_queues_are_in_the_shard_of_another_one() -> None:
    placement = Placement(b"p", 16)
    assert {pair: placement.are_together(*pair) for pair in TOGETHER} == TOGETHER
    assert Placement(b"p").are_together(b"*", b"failed")


@given(counts, names)
def test_all_keys_of_a_queue_are_in_the_slot_of_its_shard(count: int, name: bytes) -> None:
    placement = Placement(b"p", count)
    prefix = placement.prefixes[placement.shard_of(name)]
    slot = key_slot(prefix)
    for key in (prefix + b"!guard", prefix + b"!peers", base_key(prefix, name) + b":bound"):
        assert key_slot(key) == slot


@given(counts)
@example(1)
@example(MOST_SHARDS)
def test_the_slots_are_spread_evenly_and_each_shard_has_a_prefix_of_its_own(count: int) -> None:
    prefixes = Placement(b"p", count).prefixes
    slots = [key_slot(prefix) for prefix in prefixes]
    assert all(slot * count // SLOTS == shard for shard, slot in enumerate(slots))
    assert all(slot - shard * SLOTS / count <= 16 for shard, slot in enumerate(slots))
    assert len(set(prefixes)) == count
    # It does not depend on the number of shards.
    assert prefixes[0] == b"p:{%d}" % TAGS_OF_16[0]


@pytest.mark.parametrize(("masters", "shards"), [(3, 16), (4, 16), (6, 16), (3, 3)])
def test_masters_with_equal_ranges_have_equally_many_shards(masters: int, shards: int) -> None:
    placed = Counter(key_slot(prefix) * masters // SLOTS for prefix in Placement(b"p", shards).prefixes)
    assert len(placed) == masters
    assert max(placed.values()) - min(placed.values()) <= 1


@given(counts, tags, names, names)
def test_queues_with_the_same_tag_are_in_the_same_shard(
    count: int, tag: bytes, before: bytes, after: bytes
) -> None:
    before = before.translate(None, b"{}+")
    placement = Placement(b"p", count)
    assert placement.shard_of(b"%b{%b}%b" % (before, tag, after)) == placement.shard_of(tag)


@given(counts, names, names)
@example(16, b"a", b"{b}")
@example(16, b"a{", b"x}")
@example(16, b"{a+b}", b"g")
def test_a_group_is_in_the_shard_of_its_log(count: int, log: bytes, group: bytes) -> None:
    placement = Placement(b"p", count)
    assert placement.shard_of(log + b"+" + group) == placement.shard_of(log)


def test_names_are_spread_over_all_shards() -> None:
    placement = Placement(b"p", 16)
    used = Counter(placement.shard_of(b"queue-%d" % number) for number in range(16_000))
    assert len(used) == 16
    assert max(used.values()) < 1.3 * min(used.values())


@pytest.mark.parametrize(
    ("placement", "prefix"),
    [(Placement(b"p"), b"p"), (Placement(b"p", 1), b"p:{460}")],
    ids=["no cluster", "a cluster with one shard"],
)
def test_one_shard_has_all_queues(placement: Placement, prefix: bytes) -> None:
    assert placement.prefixes == [prefix]
    assert placement.shard_of(b"{a}") == placement.shard_of(b"b") == 0

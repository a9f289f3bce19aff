"""TLS records: how much plaintext the kernel has accepted, by the bytes of the records."""

import socket
from typing import cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.net import tcp_info
from pressure_server.net.tcp_info import TcpCounts, TlsRecords

RECORD, OVERHEAD, BASE = 16384, 22, 700


class Counted:
    """Records on a connection whose kernel says what the test wants."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken, self.sent = BASE, 0
        patch.setattr(tcp_info, "counts_of", lambda _: TcpCounts(self.sent, self.taken, 0, False))
        self.records = TlsRecords(cast(socket.socket, Mock()), BASE, OVERHEAD)
        # The end of each record, in bytes of records and of plaintext.
        self.ends = [(0, 0)]

    def wrote(self, size: int) -> None:
        self.records.wrote(size)
        while size:
            some = min(size, RECORD)
            records, text = self.ends[-1]
            self.ends.append((records + some + OVERHEAD, text + some))
            size -= some

    def text_in(self, records: int) -> int:
        return max(text for end, text in self.ends if end <= records)


WRITES = st.lists(st.integers(1, 3 * RECORD), min_size=1, max_size=6)


@given(WRITES, st.data())
def test_only_complete_records_count(sizes: list[int], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = Counted(patch)
        for size in sizes:
            counted.wrote(size)
        total = counted.ends[-1][0]
        # At the end of a record, and one byte to each side of it.
        edges = [end + byte for end, _ in counted.ends[1:] for byte in (-1, 0, 1) if end + byte <= total]
        for taken in sorted([*edges, *data.draw(st.lists(st.integers(1, total), max_size=5))]):
            counted.taken = BASE + taken
            assert counted.records.taken() == counted.text_in(taken)


def test_other_records_count_when_all_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those that change the keys."""
    counted = Counted(monkeypatch)
    counted.wrote(100)
    counted.taken = BASE + 122 + 30
    assert counted.records.taken() == 100
    counted.wrote(100)
    counted.taken += 121
    assert counted.records.taken() == 100
    counted.taken += 1
    assert counted.records.taken() == 200


def test_plaintext_counts_when_the_whole_record_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    counted.wrote(100)
    counted.taken = BASE + 122
    assert counted.records.taken() == 100
    counted.wrote(200)
    acknowledged = [BASE + 100, BASE + 122, BASE + 343, BASE + 344]
    assert [counted.records.text_in(size) for size in acknowledged] == [100, 100, 100, 300]


@pytest.mark.parametrize(("is_broken", "text"), [(True, 0), (False, 100)])
def test_at_the_end_of_a_broken_connection_only_what_was_sent_counts(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool, text: int
) -> None:
    counted = Counted(monkeypatch)
    counted.wrote(100)
    counted.taken, counted.sent = BASE + 122, BASE + 121
    assert counted.records.taken_at_the_end(is_broken=is_broken) == text
    cast(Mock, counted.records.socket).close.assert_called_once()


def test_a_system_that_cannot_tell_has_accepted_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    counted.wrote(100)
    monkeypatch.setattr(tcp_info, "counts_of", lambda _: None)
    assert counted.records.taken() == 0
    assert counted.records.taken_at_the_end(is_broken=False) == 0

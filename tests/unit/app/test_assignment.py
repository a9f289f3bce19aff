"""What each worker gets: its numbers, and its share of the limits."""

from __future__ import annotations

import pytest

from pressure_server.app.cli import serve_command
from pressure_server.app.settings import Settings
from pressure_server.app.workers.assignment import numbers_of, share_of


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_no_two_processes_give_the_same_number(workers: int) -> None:
    given: list[int] = []
    for process in range(workers + 1) if workers > 1 else [0]:
        first, step = numbers_of(process, workers)
        given += range(first, 1000, step)
    assert len(given) == len(set(given))
    assert min(given) >= 1


def test_a_server_that_is_one_process_numbers_by_ones() -> None:
    assert numbers_of(0, 1) == (1, 1)


def _settings(*arguments: str) -> Settings:
    return Settings(**serve_command.make_context("serve", list(arguments)).params)


def test_limits_are_divided_and_rounded_up() -> None:
    options = ("--workers", "3", "--max-clients", "10", "--max-waiting", "7", "--max-buffered-bytes", "300mb")
    whole = _settings(*options, "--http", "http://127.0.0.1:0")
    share = share_of(whole, memory=1 << 40)
    assert (share.workers, share.http) == (1, None)
    assert (share.max_clients, share.max_waiting) == (4, 3)
    assert share.max_buffered_bytes == 100 << 20
    assert share.listen == whole.listen


def test_without_a_limit_of_buffers_the_memory_of_the_machine_is_divided() -> None:
    whole = _settings("--workers", "4")
    memory = 64 << 30
    assert share_of(whole, memory).max_buffered_bytes == -(-whole.buffered_bytes(memory) // 4)

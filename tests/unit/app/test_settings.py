"""What each worker gets: its share of the limits."""

from pressure_server.app.cli import serve_command
from pressure_server.app.settings import Settings


def _settings(*arguments: str) -> Settings:
    return Settings(**serve_command.make_context("serve", list(arguments)).params)


def test_limits_are_divided_and_rounded_up() -> None:
    options = ("--workers", "3", "--max-clients", "10", "--max-waiting", "7", "--max-buffered-bytes", "300mb")
    whole = _settings(*options, "--http", "http://127.0.0.1:0")
    share = whole.of_worker()
    assert (whole.processes, share.processes) == (4, 1)
    assert (share.workers, share.http) == (1, None)
    assert (share.max_clients, share.max_waiting) == (4, 3)
    assert share.max_buffered_bytes == 100 << 20
    assert share.listen == whole.listen


def test_without_a_limit_of_buffers_the_memory_of_the_machine_is_divided() -> None:
    whole = _settings("--workers", "4")
    assert whole.max_buffered_bytes == _settings().max_buffered_bytes >= 64 << 20
    assert whole.of_worker().max_buffered_bytes == -(-whole.max_buffered_bytes // 4)

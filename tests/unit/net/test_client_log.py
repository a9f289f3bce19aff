"""The log of unknown commands: which senders are told apart, and how loud it is."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest

from pressure_server.auth.peer_address import Addresses
from pressure_server.auth.users import NOBODY, User
from pressure_server.net.client_log import UnknownCommands

_USER = User("default", queues=("*",), rights=frozenset())


class _Sender:
    """A client that has sent an unknown command."""

    PROTOCOL: ClassVar[str] = "resp"
    id = 1
    user_name = "default"

    def __init__(self, address: str, library: str = "", user: User = _USER) -> None:
        self.addresses = Addresses(address, "server", address)
        self.library_name = library
        self.user = user
        self.sends_garbage = False

    def count_of(self, _command: Any) -> int:
        return 1


@pytest.fixture
def unknown(caplog: pytest.LogCaptureFixture) -> UnknownCommands:
    caplog.set_level(logging.INFO)
    return UnknownCommands()


def _note(
    unknown: UnknownCommands, sender: _Sender, name: bytes = b"zadd", *, loses_work: bool = False
) -> None:
    unknown.note(sender, [name], "-ERR", loses_work=loses_work)


def _senders(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split(" from ")[1].split(" (")[0] for record in caplog.records]


def test_unnamed_clients_are_told_apart_by_their_host(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("10.0.0.1:5", "10.0.0.1:6", "10.0.0.2:5", "[::1]:5", "[::1]:6", "unix"):
        _note(unknown, _Sender(address))
    assert _senders(caplog) == ["10.0.0.1:5", "10.0.0.2:5", "[::1]:5", "unix"]
    assert "unknown library" in caplog.text
    assert "logged once for each host and command" in caplog.text


def test_a_library_is_logged_once_whatever_its_host(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("10.0.0.1:5", "10.0.0.2:5"):
        _note(unknown, _Sender(address, "redis-py 8"))
    assert _senders(caplog) == ["10.0.0.1:5"]
    assert "logged once for each library and command" in caplog.text


def test_what_loses_work_is_a_warning(unknown: UnknownCommands, caplog: pytest.LogCaptureFixture) -> None:
    _note(unknown, _Sender("a:1"), b"one")
    _note(unknown, _Sender("a:1"), b"other", loses_work=True)
    assert [(record.levelname, record.getMessage().split()[0]) for record in caplog.records] == [
        ("INFO", "unknown"),
        ("WARNING", "refused"),
    ]


def test_garbage_and_clients_without_a_login_are_left_out(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    _note(unknown, _Sender("a:1", user=NOBODY))
    confused = _Sender("b:1")
    for name in (b"\x80", b"zadd"):
        _note(unknown, confused, name)
    assert [record.getMessage().split(" from ")[0] for record in caplog.records] == [
        "unknown command (not a name)"
    ]

"""The log of clients: the life of a connection, and unknown commands: which senders are told apart."""

import logging
from typing import Any, ClassVar, cast

import pytest

from pressure_server.auth.peer_address import Addresses
from pressure_server.auth.users import NOBODY, User
from pressure_server.net import client_log
from pressure_server.net.client_log import ConnectionLog, UnknownCommands
from pressure_server.net.session import Session

_USER = User("default", queues=("*",), rights=frozenset())


class _Sender:
    """A client that has sent an unknown command."""

    PROTOCOL: ClassVar[str] = "resp"
    id = 1
    user_name = "default"

    def __init__(self, address: str, library: str, user: User) -> None:
        self.addresses = Addresses(address, "server", address)
        self.library_name = library
        self.user = user
        self.sends_garbage = False

    def count_of(self, command: Any) -> int:
        return command if isinstance(command, int) else 1


def _sender(address: str, library: str = "", user: User = _USER) -> Session:
    return cast(Session, _Sender(address, library, user))


@pytest.fixture
def unknown(caplog: pytest.LogCaptureFixture) -> UnknownCommands:
    caplog.set_level(logging.INFO)
    return UnknownCommands()


def _note(
    unknown: UnknownCommands, sender: Session, name: bytes = b"zadd", *, loses_work: bool = False
) -> None:
    unknown.note(sender, [name], "-ERR", loses_work=loses_work)


def _senders(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split(" from ")[1].split(" (")[0] for record in caplog.records]


@pytest.mark.parametrize(
    ("library", "logged", "once"),
    [
        ("", ["10.0.0.1:5", "10.0.0.2:5", "[::1]:5", "unix"], "logged once for each host and command"),
        ("redis-py 8", ["10.0.0.1:5"], "logged once for each library and command"),
    ],
)
def test_clients_without_the_name_of_a_library_are_told_apart_by_their_host(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture, library: str, logged: list[str], once: str
) -> None:
    for address in ("10.0.0.1:5", "10.0.0.1:6", "10.0.0.2:5", "[::1]:5", "[::1]:6", "unix"):
        _note(unknown, _sender(address, library))
    assert _senders(caplog) == logged
    assert (library or "unknown library") in caplog.text
    assert once in caplog.text


def test_what_loses_work_is_a_warning(unknown: UnknownCommands, caplog: pytest.LogCaptureFixture) -> None:
    _note(unknown, _sender("a:1"), b"one")
    _note(unknown, _sender("a:1"), b"other", loses_work=True)
    assert [(record.levelname, record.getMessage().split()[0]) for record in caplog.records] == [
        ("INFO", "unknown"),
        ("WARNING", "refused"),
    ]


def test_a_probe_of_a_library_is_for_debugging(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    unknown.note(_sender("a:1"), [b"client", b"maint_notifications"], "-ERR")
    assert caplog.records == []


def test_garbage_and_clients_without_a_login_are_left_out(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    _note(unknown, _sender("a:1", user=NOBODY))
    confused = _sender("b:1")
    for name in (b"\x80", b"zadd"):
        _note(unknown, confused, name)
    assert [record.getMessage().split(" from ")[0] for record in caplog.records] == [
        "unknown command (not a name)"
    ]


def test_after_the_most_pairs_no_more_are_logged(
    unknown: UnknownCommands, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(client_log._MAX_PAIRS + 2):
        _note(unknown, _sender("a:1"), b"c%d" % number)
    assert len(caplog.records) == client_log._MAX_PAIRS + 1
    assert caplog.records[-1].getMessage().startswith("256 unknown commands are in the log")
    assert [record.levelname for record in caplog.records if "C255" in record.getMessage()] == ["INFO"]


def test_the_life_of_a_connection_is_logged_at_the_level_debug(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    assert ConnectionLog.if_enabled() is None
    caplog.set_level(logging.DEBUG)
    now = [100.0]
    monkeypatch.setattr(client_log, "perf_counter", lambda: now[0])
    log, client, other, unseen = (
        ConnectionLog.if_enabled(),
        *(_sender(name) for name in ("a:1", "b:2", "c:3")),
    )
    assert log is not None
    log.opened(client)
    log.opened(other)
    log.received(client, [b"x", 5])
    for one in (client, unseen):
        log.received(one, [b"x"])
    now[0] = 101.25
    log.closed(client, "it was idle")
    log.closed(other, "the client closed it")
    # Connections that have been closed, and those that were open before the log, are left out.
    for one in (client, unseen):
        log.closed(one, "twice")
        log.received(one, [b"x"])
    assert [record.getMessage() for record in caplog.records] == [
        "connection 1 from a:1 opened (resp)",
        "connection 1 from b:2 opened (resp)",
        "connection 1 from a:1 closed after 1.250 seconds and 7 commands: it was idle",
        "connection 1 from b:2 closed after 1.250 seconds and 0 commands: the client closed it",
    ]
    assert [vars(record).get("duration") for record in caplog.records] == [None, None, 1.25, 1.25]
    assert {vars(record)["client"] for record in caplog.records} == {"a:1", "b:2"}

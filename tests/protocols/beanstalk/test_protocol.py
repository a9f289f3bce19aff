"""The clauses of beanstalkd's protocol text, on a server and on beanstalkd: replies byte for byte.

docs/reference/beanstalk.md lists the clauses with their names here.
"""

import re
import signal
import socket
from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped] # it has no types

from pressure_server.text import printable
from tests.documents import DOCS
from tests.support.beanstalkd import running_beanstalkd
from tests.support.programs import Server, StartServer, Valkey, wait_for
from tests.support.protocols import BEANSTALK, LISTEN, Wire

# What many clauses begin with: a job, and one that client A has reserved.
PUT = "A> use TUBE|put 0 0 9 1|a\nA< USING TUBE|INSERTED {a}\n"
RESERVED = (
    "A> watch TUBE|use TUBE|put 5 0 9 1|a|reserve\nA< WATCHING 2|USING TUBE|INSERTED {a}|RESERVED {a} 1|a\n"
)
# By name: lines `A> request` of client A, and `A< reply`; `|` is CRLF. TUBE is a tube of the clause's own.
# `{x}` is an id: its first occurrence sets it. `A: half-close` sends no more, `A: closed` expects the end.
CLAUSES = {
    "names: all characters": "A> use azAZ09-+/;.$_()\nA< USING azAZ09-+/;.$_()",
    "names: not empty": "A> use \nA< BAD_FORMAT\nA> watch\nA< UNKNOWN_COMMAND",
    "names: no hyphen first": "A> use -a\nA< BAD_FORMAT",
    "names: other characters": (
        "A> use a:b\nA< BAD_FORMAT\nA> watch a b\nA< BAD_FORMAT\nA> use a,b\nA< BAD_FORMAT"
    ),
    "names: 200 bytes at most": (
        f"A> use {'t' * 200}\nA< USING {'t' * 200}\nA> use {'t' * 201}\nA< BAD_FORMAT"
    ),
    "pipelines: replies in order": (
        "A> use TUBE|list-tube-used|nonsense|watch TUBE\nA< USING TUBE|USING TUBE|UNKNOWN_COMMAND|WATCHING 2"
    ),
    "bodies: any bytes": (
        "A> watch TUBE|use TUBE|put 0 0 9 9|\0\x01\xff\\n||a|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|RESERVED {a} 9|\0\x01\xff\\n||a\nA> delete {a}\nA< DELETED"
    ),
    "closing: quit": "A> quit\nA: closed",
    "closing: releases reserved jobs": (
        RESERVED + "A> quit\nA: closed\n"
        "B> watch TUBE|reserve-with-timeout 9\nB< WATCHING 2|RESERVED {a} 1|a\nB> delete {a}\nB< DELETED"
    ),
    "BAD_FORMAT: long lines": f"A> {'x' * 222}\nA< UNKNOWN_COMMAND\nA> {'x' * 300}\nA< BAD_FORMAT",
    "BAD_FORMAT: not a number": (
        "A> release 1 x 0\nA< BAD_FORMAT\nA> delete x\nA< BAD_FORMAT\nA> kick x\nA< BAD_FORMAT\n"
        "A> pause-tube TUBE x\nA< BAD_FORMAT\nA> put x 0 1 1\nA< BAD_FORMAT"
    ),
    "BAD_FORMAT: number of arguments": (
        "A> release 1 0\nA< BAD_FORMAT\nA> bury 1\nA< BAD_FORMAT\n"
        "A> peek 1 2\nA< BAD_FORMAT\nA> reserve 1\nA< BAD_FORMAT\nA> stats x\nA< BAD_FORMAT\n"
        "A> put 0 0 1\nA< BAD_FORMAT"
    ),
    "UNKNOWN_COMMAND": (
        "A> nonsense\nA< UNKNOWN_COMMAND\nA> \nA< UNKNOWN_COMMAND\nA> PUT 0 0 1 1\nA< UNKNOWN_COMMAND"
    ),
    "tubes: default at first": (
        "A> list-tube-used\nA< USING default\nA> list-tubes-watched\nA< OK 14|---\\n- default\\n"
    ),
    "put: INSERTED": "A> use TUBE|put 10 0 60 5|hello\nA< USING TUBE|INSERTED {a}\nA> delete {a}\nA< DELETED",
    "put: priorities, then age": (
        "A> watch TUBE|use TUBE|put 2 0 9 1|a|put 4294967295 0 9 1|b|put 0 0 9 1|c|put 2 0 9 1|d\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|INSERTED {b}|INSERTED {c}|INSERTED {d}\n"
        "A> reserve|reserve|reserve|reserve\n"
        "A< RESERVED {c} 1|c|RESERVED {a} 1|a|RESERVED {d} 1|d|RESERVED {b} 1|b"
    ),
    "put: priority below 2^32": "A> put 4294967296 0 1 1\nA< BAD_FORMAT",
    "put: delay": (
        "A> watch TUBE|use TUBE|put 0 1 9 1|a|reserve-with-timeout 0\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|TIMED_OUT\n"
        "A> peek-delayed\nA< FOUND {a} 1|a\nA> reserve-with-timeout 9\nA< RESERVED {a} 1|a"
    ),
    "put: delay up to 2^32 - 1": (
        "A> use TUBE|put 0 4294967295 4294967295 1|a\nA< USING TUBE|INSERTED {a}\nA> put 0 4294967296 1 1\n"
        "A< BAD_FORMAT\nB> put 0 0 4294967296 1\nB< BAD_FORMAT"
    ),
    "put: time to run": (
        "A> watch TUBE|use TUBE|put 0 0 1 1|a\nA< WATCHING 2|USING TUBE|INSERTED {a}\n"
        "A> reserve\nA< RESERVED {a} 1|a\n"
        "B> watch TUBE|reserve-with-timeout 9\nB< WATCHING 2|RESERVED {a} 1|a\nA> delete {a}\nA< NOT_FOUND"
    ),
    "put: time to run of 0 is 1": (
        "A> watch TUBE|use TUBE|put 0 0 0 1|a|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|RESERVED {a} 1|a\n"
        "A> reserve\nA< DEADLINE_SOON"
    ),
    "put: EXPECTED_CRLF": "A> put 0 0 1 1|ab\nA< EXPECTED_CRLF",
    "put: JOB_TOO_BIG": f"A> put 0 0 1 65536|{'x' * 65536}|use TUBE\nA< JOB_TOO_BIG|USING TUBE",
    "put: the largest job": (
        f"A> use TUBE|put 0 0 1 65535|{'x' * 65535}\nA< USING TUBE|INSERTED {{a}}\nA> delete {{a}}\n"
        f"A< DELETED"
    ),
    "use: USING": "A> use TUBE\nA< USING TUBE\nA> list-tube-used\nA< USING TUBE",
    "reserve: waits for a job": (
        "A> watch TUBE|reserve\nA< WATCHING 2\nB> use TUBE|put 0 0 9 1|a\nB< USING TUBE|INSERTED {a}\n"
        "A< RESERVED {a} 1|a"
    ),
    "reserve: TIMED_OUT": "A> reserve-with-timeout 0\nA< TIMED_OUT\nA> reserve-with-timeout 1\nA< TIMED_OUT",
    "reserve: TIMED_OUT after a half-close": (
        "A> watch TUBE|ignore default\nA< WATCHING 2|WATCHING 1\nA> reserve\nA: half-close\n"
        "A< TIMED_OUT\nA: closed"
    ),
    "reserve: DEADLINE_SOON in the margin": (
        "A> watch TUBE|use TUBE|put 0 0 1 1|a|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|RESERVED {a} 1|a\n"
        "A> reserve-with-timeout 9\nA< DEADLINE_SOON\nA> delete {a}\nA< DELETED"
    ),
    "reserve: DEADLINE_SOON while waiting": (
        "A> watch TUBE|use TUBE|put 0 0 2 1|a|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|RESERVED {a} 1|a\n"
        "A> reserve\nA< DEADLINE_SOON\nA> delete {a}\nA< DELETED"
    ),
    "reserve: from all watched tubes": (
        "A> use TUBE1|put 1 0 9 1|a|use TUBE2|put 0 0 9 1|b\n"
        "A< USING TUBE1|INSERTED {a}|USING TUBE2|INSERTED {b}\n"
        "A> watch TUBE1|watch TUBE2|reserve|reserve\n"
        "A< WATCHING 2|WATCHING 3|RESERVED {b} 1|b|RESERVED {a} 1|a"
    ),
    "reserve-job: RESERVED": (
        "A> use TUBE|put 0 0 9 1|a|put 0 9 9 1|b\nA< USING TUBE|INSERTED {a}|INSERTED {b}\n"
        "A> reserve-job {a}|reserve-job {b}\nA< RESERVED {a} 1|a|RESERVED {b} 1|b\n"
        "A> bury {a} 0|reserve-job {a}\nA< BURIED|RESERVED {a} 1|a"
    ),
    "reserve-job: NOT_FOUND": (
        RESERVED + "A> reserve-job 99999999|reserve-job {a}\nA< NOT_FOUND|NOT_FOUND\n"
        "B> reserve-job {a}\nB< NOT_FOUND"
    ),
    "delete: in every state": (
        "A> watch TUBE|use TUBE|put 0 0 9 1|a|put 0 9 9 1|b|put 0 0 9 1|c|put 0 0 9 1|d\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|INSERTED {b}|INSERTED {c}|INSERTED {d}\n"
        "A> delete {a}|delete {b}\nA< DELETED|DELETED\nA> reserve|reserve\n"
        "A< RESERVED {c} 1|c|RESERVED {d} 1|d\n"
        "A> bury {c} 0|delete {c}|delete {d}|delete {d}\nA< BURIED|DELETED|DELETED|NOT_FOUND"
    ),
    "delete: NOT_FOUND if another client has it": (
        RESERVED + "B> delete {a}\nB< NOT_FOUND\nA> delete {a}\nA< DELETED"
    ),
    "release: RELEASED": (
        "A> watch TUBE|use TUBE|put 5 0 9 1|a|put 5 0 9 1|b|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|INSERTED {b}|RESERVED {a} 1|a\n"
        "A> release {a} 6 0|reserve\nA< RELEASED|RESERVED {b} 1|b"
    ),
    "release: delay": (
        RESERVED + "A> release {a} 5 1|peek-delayed|reserve-with-timeout 0|reserve\n"
        "A< RELEASED|FOUND {a} 1|a|TIMED_OUT|RESERVED {a} 1|a"
    ),
    "release: NOT_FOUND": PUT + "A> release {a} 0 0|release 99999999 0 0\nA< NOT_FOUND|NOT_FOUND",
    "bury: BURIED": (
        RESERVED + "A> bury {a} 3|peek-buried|reserve-with-timeout 0\nA< BURIED|FOUND {a} 1|a|TIMED_OUT"
    ),
    "bury: NOT_FOUND": "A> bury 99999999 0\nA< NOT_FOUND",
    "touch: TOUCHED": RESERVED + "A> touch {a}\nA< TOUCHED",
    "touch: NOT_FOUND": PUT + "A> touch {a}|touch 99999999\nA< NOT_FOUND|NOT_FOUND",
    "watch: WATCHING": "A> watch TUBE|watch TUBE\nA< WATCHING 2|WATCHING 2",
    "ignore: WATCHING": "A> watch TUBE|ignore default|ignore other\nA< WATCHING 2|WATCHING 1|WATCHING 1",
    "ignore: NOT_IGNORED": "A> ignore default\nA< NOT_IGNORED",
    "peek: FOUND": (
        "A> use TUBE|put 1 0 9 1|a|put 0 0 9 1|b|put 0 9 9 1|c|put 0 8 9 1|d\n"
        "A< USING TUBE|INSERTED {a}|INSERTED {b}|INSERTED {c}|INSERTED {d}\n"
        "A> peek {a}|peek-ready|peek-delayed\nA< FOUND {a} 1|a|FOUND {b} 1|b|FOUND {d} 1|d\n"
        "A> reserve-job {b}|bury {b} 9|reserve-job {a}|bury {a} 0|peek-buried\n"
        "A< RESERVED {b} 1|b|BURIED|RESERVED {a} 1|a|BURIED|FOUND {b} 1|b"
    ),
    "peek: NOT_FOUND": (
        "A> use TUBE|peek 99999999|peek-ready|peek-delayed|peek-buried\n"
        "A< USING TUBE|NOT_FOUND|NOT_FOUND|NOT_FOUND|NOT_FOUND"
    ),
    "kick: buried jobs first": (
        "A> use TUBE|put 0 9 9 1|a|put 0 9 9 1|b|put 0 0 9 1|c\n"
        "A< USING TUBE|INSERTED {a}|INSERTED {b}|INSERTED {c}\n"
        "A> kick +0|kick -0\nA< KICKED 0|KICKED 0\n"
        "A> reserve-job {c}|bury {c} 0|kick 9|kick 1|kick 9|kick 9\n"
        "A< RESERVED {c} 1|c|BURIED|KICKED 1|KICKED 1|KICKED 1|KICKED 0"
    ),
    "kick-job: KICKED": (
        "A> use TUBE|put 0 9 9 1|a|put 0 0 9 1|b\nA< USING TUBE|INSERTED {a}|INSERTED {b}\n"
        "A> reserve-job {b}|bury {b} 0|kick-job {a}|kick-job {b}\nA< RESERVED {b} 1|b|BURIED|KICKED|KICKED"
    ),
    "kick-job: NOT_FOUND": PUT + "A> kick-job {a}|kick-job 99999999\nA< NOT_FOUND|NOT_FOUND",
    "stats-job: NOT_FOUND": "A> stats-job 99999999\nA< NOT_FOUND",
    "stats-tube: NOT_FOUND": "A> stats-tube TUBE\nA< NOT_FOUND",
    "list-tube-used: USING": "A> use TUBE|list-tube-used\nA< USING TUBE|USING TUBE",
    "list-tubes-watched: OK": (
        "A> watch TUBE|list-tubes-watched\nA< WATCHING 2|OK 21|---\\n- default\\n- TUBE\\n"
    ),
    "pause-tube: PAUSED": (
        "A> watch TUBE|use TUBE|put 0 0 9 1|a|pause-tube TUBE 1|reserve-with-timeout 0|reserve\n"
        "A< WATCHING 2|USING TUBE|INSERTED {a}|PAUSED|TIMED_OUT|RESERVED {a} 1|a"
    ),
    "pause-tube: NOT_FOUND": "A> pause-tube TUBE 1\nA< NOT_FOUND",
}
STATS_JOB = """id tube state pri age delay ttr time-left file reserves timeouts releases buries kicks"""
STATS_TUBE = """
name current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed current-jobs-buried
total-jobs current-using current-watching current-waiting cmd-delete cmd-pause-tube pause pause-time-left
"""
STATS = """
current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed current-jobs-buried cmd-put
cmd-peek cmd-peek-ready cmd-peek-delayed cmd-peek-buried cmd-reserve cmd-reserve-with-timeout cmd-delete
cmd-release cmd-use cmd-watch cmd-ignore cmd-bury cmd-kick cmd-touch cmd-stats cmd-stats-job cmd-stats-tube
cmd-list-tubes cmd-list-tube-used cmd-list-tubes-watched cmd-pause-tube job-timeouts total-jobs max-job-size
current-tubes current-connections current-producers current-workers current-waiting total-connections pid
version rusage-utime rusage-stime uptime binlog-oldest-index binlog-current-index binlog-records-migrated
binlog-records-written binlog-max-size draining id hostname os platform
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server's beanstalk listener."""
    valkey = Valkey(tmp_path_factory.mktemp("protocol"))
    server = Server(valkey.folder / "log", "--backend", valkey.url, "--listen", "beanstalk://127.0.0.1:0")
    yield server.port_of("beanstalk")
    server.end_well()
    valkey.stop()


@pytest.fixture(scope="module")
def theirs() -> Iterator[int]:
    """The port of a beanstalkd."""
    with running_beanstalkd() as port:
        yield port


@pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.clients)])
def port(request: pytest.FixtureRequest) -> int:
    """The port of either."""
    found: int = request.getfixturevalue(request.param)
    return found


def connect(port: int) -> Wire:
    return Wire(BEANSTALK, port)


class Script:
    """The clients and the ids of one clause."""

    def __init__(self, port: int, name: str) -> None:
        self._port, self._tube = port, f"t{list(CLAUSES).index(name):03d}"
        self._ids: dict[str, str] = {}
        self._wires: dict[str, Wire] = {}

    def run(self, clause: str) -> None:
        """Send the requests, and compare the replies."""
        for line in clause.split("\n"):
            if line[0] not in self._wires:
                self._wires[line[0]] = connect(self._port)
            wire, kind, text = self._wires[line[0]], line[1:3], line[3:].replace("TUBE", self._tube)
            data = text.replace("|", "\r\n").replace("\\n", "\n").encode("latin-1") + b"\r\n"
            if kind == "> ":
                wire.send(self._known(data))
            elif kind == "< ":
                self._expect(wire, data)
            elif text == "half-close":
                wire.socket.shutdown(socket.SHUT_WR)
            else:
                assert wire.is_closed()
        for wire in self._wires.values():
            wire.close()

    def _expect(self, wire: Wire, expected: bytes) -> None:
        for each in expected.splitlines(keepends=True):
            line = self._known(each)
            new = re.search(rb"\{(\w)\}", line)
            if not new:
                assert wire.exactly(len(line)) == line
                continue
            found = wire.line()
            assert found.startswith(line[: new.start()]), (line, found)
            number = found[new.start() :].split()[0]
            assert found == line.replace(new[0], number)
            self._ids.setdefault(new[1].decode(), number.decode())

    def _known(self, line: bytes) -> bytes:
        for name, number in self._ids.items():
            line = line.replace(b"{%b}" % name.encode(), number.encode())
        return line


# beanstalkd 1.12 now and then misses the end of a reservation while its client is silent.
UNRELIABLE = {"put: time to run"}


@pytest.mark.parametrize("name", CLAUSES)
def test_a_clause_of_the_protocol_text_holds(name: str, ours: int) -> None:
    Script(ours, name).run(CLAUSES[name])


@pytest.mark.clients
@pytest.mark.parametrize("name", [name for name in CLAUSES if name not in UNRELIABLE])
def test_a_clause_is_as_in_beanstalkd(name: str, theirs: int) -> None:
    Script(theirs, name).run(CLAUSES[name])


def test_the_document_lists_all_clauses() -> None:
    text = (DOCS / "reference" / "beanstalk.md").read_text().partition("clause by clause")[2]
    listed = re.findall(r"^\| .* \| `([^`]*)` \|$", text, re.MULTILINE)
    others = {name for name in globals() if name.startswith("test_")}
    assert {name for name in listed if name not in others} == set(CLAUSES)


def yaml_of(wire: Wire, request: bytes) -> dict[str, str]:
    """Send a request, check the form of its YAML, and return it."""
    wire.send(request)
    size = int(wire.line().removeprefix(b"OK "))
    data = wire.exactly(size + 2).decode()
    assert data.startswith("---\n")
    assert data.endswith("\n\r\n")
    return dict(line.split(": ", 1) for line in data.split("\n")[1:-2])


def test_stats_job_has_all_keys(port: int) -> None:
    with connect(port) as wire:
        wire.send(b"use keys\r\nput 7 0 60 1\r\na\r\n")
        job = wire.line() and wire.line().split()[1]
        found = yaml_of(wire, b"stats-job %b\r\n" % job)
        assert list(found) == STATS_JOB.split()
        expected = {
            "id": job.decode(),
            "tube": "keys",
            "state": "ready",
            "pri": "7",
            "delay": "0",
            "ttr": "60",
        }
        assert expected.items() <= found.items()
        for command in (
            b"reserve-job %b",
            b"release %b 8 90",
            b"kick-job %b",
            b"reserve-job %b",
            b"bury %b 9",
        ):
            wire(command % job + b"\r\n")
        found = yaml_of(wire, b"stats-job %b\r\n" % job)
        expected = {"state": "buried", "pri": "9", "delay": "90", "reserves": "2", "timeouts": "0"}
        expected |= {"releases": "1", "buries": "1", "kicks": "1", "file": "0", "time-left": "0"}
        assert expected.items() <= found.items()


def test_stats_tube_has_all_keys(port: int) -> None:
    with connect(port) as wire:
        wire.send(b"use tube\r\nput 7 0 60 1\r\na\r\nput 1024 0 60 1\r\na\r\nput 7 90 60 1\r\na\r\n")
        wire.send(b"pause-tube tube 100\r\n")
        first = wire.replies(5)[1:2]
        assert first == [b"INSERTED"]
        found = yaml_of(wire, b"stats-tube tube\r\n")
        assert list(found) == STATS_TUBE.split()
        assert found.pop("pause-time-left") in ("99", "100")
        assert list(found.values()) == ["tube", "1", "2", "0", "1", "0", "3", "1", "0", "0", "0", "1", "100"]


def test_stats_has_all_keys(port: int, ours: int) -> None:
    with connect(port) as wire:
        before = yaml_of(wire, b"stats\r\n")
        assert list(before)[: len(STATS.split())] == STATS.split()
        assert list(before)[len(STATS.split()) :] == ["current-unlisted-queues"] * (port == ours)
        assert (before["max-job-size"], before["draining"], before["version"]) == ("65535", "false", '"1.12"')
        with connect(port) as waiting:
            waiting.send(b"watch nothing\r\nignore default\r\nreserve\r\n")
            after = wait_for(
                lambda: (found := yaml_of(wire, b"stats\r\n"))["current-waiting"] == "1" and found, "a wait"
            )
        rises = {
            "cmd-watch": 1, "cmd-ignore": 1, "cmd-reserve": 1, "current-workers": 1, "current-connections": 1,
            "current-tubes": 1, "total-connections": 1,
        }  # fmt: skip
        assert {key: int(after[key]) - int(before[key]) for key in rises} == rises


def test_list_tubes_lists_all_tubes(port: int) -> None:
    with connect(port) as wire:
        wire.send(b"use listed\r\nlist-tubes\r\n")
        assert wire.line() == b"USING listed\r\n"
        size = int(wire.line().removeprefix(b"OK "))
        lines = wire.exactly(size + 2).split(b"\n")
        assert lines[0] == b"---"
        assert {b"- default", b"- listed"} <= set(lines)


def test_a_tube_in_use_is_paused_even_if_somebody_makes_and_deletes_it_again_and_again(
    start_server: StartServer, backend: Valkey
) -> None:
    """The pause of a tube without jobs creates it. A put or a deletion may come between the two."""
    server = start_server("--backend", backend.url, *LISTEN)
    times = 300
    with connect(server.port_of("beanstalk")) as wire, server.client() as other:
        wire.send(b"use tube\r\n" + b"pause-tube tube 0\r\n" * times)
        for _ in range(times):
            other.delete("tube")
            other.rpush("tube", "a")
        assert wire.replies(times + 1)[1:] == [b"PAUSED"] * times


NO_TUBES = [b"mails:worker-1", b"a\n- x", b"\xff", b"-x", b"a b: c", b"t" * 201, b"{}", b"#x", b"~", b"'"]


def test_queues_whose_names_are_no_tubes_are_counted_and_not_listed(
    backend: Valkey, start_server: StartServer
) -> None:
    """Clients fail at the first such name."""
    server = start_server("--backend", backend.url, *LISTEN)
    with server.client() as redis, connect(server.port_of("beanstalk")) as wire:
        for name in (*NO_TUBES, b"mails"):
            redis.rpush(name, "m")
        wire.send(b"list-tubes\r\n")
        size = int(wire.line().removeprefix(b"OK "))
        assert wire.exactly(size + 2) == b"---\n- default\n- mails\n\r\n"
        stats = yaml_of(wire, b"stats\r\n")
        assert (stats["current-tubes"], stats["current-unlisted-queues"]) == ("2", str(len(NO_TUBES)))
        assert stats["current-jobs-ready"] == str(len(NO_TUBES) + 1)
        for name in NO_TUBES:
            job = redis.execute_command("PRESSURE.RESERVE", name)[1]
            wire.send(b"stats-job %d\r\n" % job)
            text = wire.exactly(int(wire.line().removeprefix(b"OK ")) + 2).decode()
            assert yaml.safe_load(text)["tube"] == printable(
                name if isinstance(name, bytes) else name.encode()
            )


def test_timeouts_are_counted(ours: int) -> None:
    with connect(ours) as wire, connect(ours) as other:
        before = yaml_of(wire, b"stats\r\n")["job-timeouts"]
        wire.send(b"use late\r\nput 0 0 1 1\r\na\r\nwatch late\r\nreserve\r\n")
        job = [wire.line() for _ in range(5)][1].split()[1]
        other.send(b"watch late\r\nreserve-with-timeout 9\r\n")
        assert [other.line(), other.line()] == [b"WATCHING 2\r\n", b"RESERVED %b 1\r\n" % job]
        assert int(yaml_of(wire, b"stats\r\n")["job-timeouts"]) == int(before) + 1
        assert yaml_of(wire, b"stats-job %b\r\n" % job)["timeouts"] == "1"


def test_a_put_in_drain_mode_is_refused(backend: Valkey, start_server: StartServer) -> None:
    server = start_server("--backend", backend.url, "--listen", "beanstalk://127.0.0.1:0")
    server.process.send_signal(signal.SIGUSR1)
    with connect(server.port_of("beanstalk")) as wire:
        wait_for(lambda: yaml_of(wire, b"stats\r\n")["draining"] == "true", "drain mode")
        wire.send(b"put 0 0 1 1\r\na\r\nreserve-with-timeout 0\r\n")
        assert [wire.line(), wire.line()] == [b"DRAINING\r\n", b"TIMED_OUT\r\n"]


def test_a_put_into_a_full_queue_is_out_of_memory(backend: Valkey, start_server: StartServer) -> None:
    options = ("--overflow", "error", "--listen", "beanstalk://127.0.0.1:0")
    server = start_server("--backend", backend.url, *options)
    with server.client() as redis:
        redis.execute_command("PRESSURE.CREATE", "default", "BOUND", "1")
    with connect(server.port_of("beanstalk")) as wire:
        wire.send(b"put 0 0 1 1\r\na\r\nput 0 0 1 1\r\nb\r\n")
        assert [wire.line(), wire.line()] == [b"INSERTED 1\r\n", b"OUT_OF_MEMORY\r\n"]

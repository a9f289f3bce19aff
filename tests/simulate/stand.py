"""A backend and its servers, used by all programs; and the keys of the queues, read from the backend."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulate.programs import WITH_WAITS
from tests.support.on_cluster import SpreadValkey
from tests.support.programs import Server, Valkey
from tests.support.reference.jobs import STATES
from tests.support.reference.keys import EXTENSION, PROTOCOL, ask_for_queue, fields_of_queue
from tests.support.reference.queue import Queue
from tests.support.small_library import small_library

PREFIX = "__pressure__"
# Servers with the default settings, and two that refuse what must wait. Another one has small limits.
PATIENT, STRICT = 3, 2
_JOB = re.compile(rb"[0-9a-f]{13}")


@dataclass
class Keys:
    """The backend's keys of a queue: the protocol's, and where each job is."""

    queue: Queue
    has_jobs: bool
    jobs: dict[int, bytes]  # their messages
    states: dict[str, list[int]]  # the next job first


class Stand:
    """A backend and its servers. The backend is the embedded Valkey, `redis`, or a `cluster` of Redis."""

    def __init__(self, folder: Path, backend: str = "valkey") -> None:
        data = folder / "backend"
        data.mkdir(parents=True)
        self.is_spread = backend == "cluster"
        program = "redis-server" if backend == "redis" else None
        self.backend = SpreadValkey(data) if self.is_spread else Valkey(data, binary=program)
        arguments = (
            "--backend", self.backend.url,
            "--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0",
        )  # fmt: skip
        strict = ("--overflow", "error", "--role-timeout", "0")
        self.patient = [Server(folder / f"server-{number}.log", *arguments) for number in range(PATIENT)]
        self.strict = [
            Server(folder / f"strict-{number}.log", *arguments, *strict) for number in range(STRICT)
        ]
        self.small = Server(folder / "small.log", *arguments, *strict, environment=small_library())

    @functools.cached_property
    def direct(self) -> Any:
        """A client of the backend."""
        return self.backend.client()

    @property
    def all_servers(self) -> list[Server]:
        return [*self.patient, *self.strict, self.small]

    def servers(self, flavour: str) -> list[Server]:
        """Return the servers for programs of that flavour."""
        if flavour == "lists":
            return [self.strict[0], self.small]
        return self.patient if flavour in WITH_WAITS else self.strict

    @functools.cached_property
    def identities(self) -> list[bytes]:
        """What each of the servers of lists writes into the keys of the roles."""
        found: list[Any] = []
        for server in self.servers("lists"):
            with server.client() as client:
                client.sadd("q", "m")
                found.append(self.direct.get(f"{PREFIX}:q:producer"))
                client.delete("q")
        return found

    def last_block(self) -> int:
        """Return the number of the last block of ids that a queue has taken."""
        return 0 if self.is_spread else int(self.direct.get(f"{PREFIX}!last_block") or 0)

    def forget_all(self) -> None:
        """Delete the keys of all queues, whoever holds their roles."""
        if not self.is_spread and (found := self.direct.keys(f"{PREFIX}:*")):
            self.direct.delete(*found)

    def forget_protocol(self, name: str) -> None:
        """Delete the protocol's keys of a queue only, as somebody would who knows no others."""
        self.direct.delete(*[f"{PREFIX}:{name}{suffix}" for suffix in PROTOCOL])

    def copy(self, name: str, clone: str) -> None:
        """Make a copy of a list with all its keys."""
        pipeline = self.direct.pipeline(transaction=False)
        bases = [f"{PREFIX}:{one}" for one in (name, clone)]
        pipeline.delete(*[bases[1] + suffix for suffix in PROTOCOL + EXTENSION])
        for suffix in PROTOCOL + EXTENSION:
            pipeline.copy(*[base + suffix for base in bases])
        pipeline.execute()

    def keys(self, name: str) -> list[bytes]:
        """Return all keys of a queue."""
        found: Any = self.direct.keys(f"{PREFIX}:{name}*")
        return list(found)

    def length(self, name: str) -> int:
        """Return the length of the list of a queue."""
        found: Any = self.direct.llen(f"{PREFIX}:{name}")
        return int(found)

    def read(self, names: Iterable[str]) -> dict[str, Keys]:
        """Read the keys of queues, in one round trip."""
        pipeline = self.direct.pipeline(transaction=False)
        names = list(names)
        for name in names:
            _ask(pipeline, f"{PREFIX}:{name}")
        replies = iter(pipeline.execute())
        return {name: _keys_of(replies) for name in names}

    def end_time(self, name: str, state: str, job: int, time: int) -> None:
        """Let the delay or the reservation of a job end, `time` milliseconds after 1970."""
        changed = self.direct.zadd(f"{PREFIX}:{name}:ext:{state}", {b"%013x" % job: time}, xx=True, ch=True)
        assert changed == 1, f"job {job} of {name} is not {state}"

    def close(self) -> None:
        for server in self.all_servers:
            server.stop()
        self.backend.stop()

    def is_clean(self) -> bool:
        """Return whether the servers logged no error."""
        logs = [server.log for server in self.all_servers]
        return not any(re.search(r"\bERROR  |Traceback|Fatal", log) for log in logs)


def _ask(pipeline: Any, base: str) -> None:
    ask_for_queue(pipeline, base)
    pipeline.get(f"{base}:ext:made")
    pipeline.hgetall(f"{base}:ext:jobs")
    for state in STATES:
        pipeline.zrange(f"{base}:ext:{state}", 0, -1)


def _keys_of(replies: Any) -> Keys:
    queue, made = Queue(**fields_of_queue(replies)), next(replies)
    jobs = {int(key, 16): value for key, value in next(replies).items() if _JOB.fullmatch(key)}
    return Keys(
        queue,
        bool(made and made.endswith(b" jobs")),
        {job: value.split(b" ", 6)[6] for job, value in jobs.items()},
        {state: [int(member, 16) for member in next(replies)] for state in STATES},
    )

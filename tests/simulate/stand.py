"""A backend and its servers, used by all programs; and the keys of the queues, read from the backend."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.model.keys import ask_for_queue, fields_of_queue
from tests.simulate.programs import WITH_WAITS
from tests.support.paths import ROOT
from tests.support.programs import Server, Valkey
from tests.support.reference.jobs import STATES
from tests.support.reference.queue import Queue

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
    """A backend and its servers. `program` is that of the backend; None for the embedded Valkey."""

    def __init__(self, folder: Path, program: str | None = None) -> None:
        data = folder / "backend"
        data.mkdir(parents=True)
        self.backend = Valkey(data, binary=program)
        self.direct = self.backend.client()
        arguments = (
            "--backend", self.backend.url,
            "--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0",
        )  # fmt: skip
        strict = ("--overflow", "error", "--role-timeout", "0")
        self.patient = [Server(folder / f"server-{number}.log", *arguments) for number in range(PATIENT)]
        self.strict = [
            Server(folder / f"strict-{number}.log", *arguments, *strict) for number in range(STRICT)
        ]

        small = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "small"), str(ROOT)))}
        self.small = Server(folder / "small.log", *arguments, *strict, environment=small)

    @property
    def all_servers(self) -> list[Server]:
        return [*self.patient, *self.strict, self.small]

    def servers(self, flavour: str) -> list[Server]:
        """Return the servers for programs of that flavour."""
        if flavour == "lists":
            return [self.strict[0], self.small]
        return self.patient if flavour in WITH_WAITS else self.strict

    def last_block(self) -> int:
        """Return the number of the last block of ids that a queue has taken."""
        return int(self.direct.get(f"{PREFIX}!last_block") or 0)

    def forget_all(self) -> None:
        """Delete the keys of all queues, whoever holds their roles."""
        if found := self.direct.keys(f"{PREFIX}:*"):
            self.direct.delete(*found)

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
        self.direct.close()
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

"""The processes of one server that serve clients: one, or several with --workers.

A question goes to each process, which answers it for itself, and the answers are put together here.
"""

import asyncio
import resource
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import islice
from operator import add, attrgetter
from typing import Any, TypeVar

from pressure_server.errors import BackendError, UnblockedError
from pressure_server.net.client_facts import ClientFacts, SelectedClients, Selection, facts_of, sessions_of
from pressure_server.net.clients import Clients
from pressure_server.net.command_statistics import (
    CommandStatistics,
    all_statistics,
    reset_statistics,
    total_statistics,
)
from pressure_server.net.slow_log import SlowCommand
from pressure_server.queues.broker import Broker
from pressure_server.queues.calls.statistics import CallStatistics
from pressure_server.queues.operations.operation import Line

# Asks all processes that serve clients, and returns their answers.
AskAll = Callable[..., Awaitable[list[Any]]]
RESET_STATISTICS = "reset_statistics"
# Tells a process whether others have monitors, and lines for its own.
MONITORS = "watch"
# Seconds for the reply to an operation of a client that is unblocked; less than workers have for an answer.
_UNBLOCK_TIMEOUT = 0.5
# How many clients of each line wait on a queue.
Waiting = dict[Line, int]

_Summed = TypeVar("_Summed")


@dataclass(frozen=True)
class Totals:
    """Counts of clients and commands, and what the processes use; see Clients and MemoryAccount."""

    protocols: Counter[str] = field(default_factory=Counter)  # of the connected clients
    strangers: int = 0  # of the connected clients, those that have not logged in although they must
    blocked: int = 0
    throttled: int = 0
    waiting_operations: int = 0
    buffered_bytes: int = 0
    accepted: int = 0
    rejected: int = 0
    evicted: int = 0
    commands: int = 0
    commands_per_second: int = 0
    failed_logins: int = 0
    refused_commands: int = 0
    refused_queues: int = 0
    max_clients: int = 0
    max_waiting: int = 0
    max_buffered_bytes: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    user_seconds: float = 0.0
    system_seconds: float = 0.0

    @property
    def connected(self) -> int:
        """The number of connected clients."""
        return self.protocols.total()


# The fields of Totals that count since the start. The others are of the present.
_SINCE_START = (
    "accepted", "rejected", "evicted", "commands", "failed_logins", "refused_commands", "refused_queues",
    "user_seconds", "system_seconds",
)  # fmt: skip


def sum_fields(kind: type[_Summed], several: Iterable[_Summed]) -> _Summed:
    """Return the sum of each field of a dataclass, of which all fields can be added."""
    of_all = attrgetter(*(one.name for one in fields(kind)))  # type: ignore[arg-type] # a dataclass
    rows = [of_all(one) for one in several]
    return kind(*[reduce(add, column) for column in zip(*rows, strict=True)])


class Process:
    """One process that serves clients. It answers each question of `Workers` by the method of that name."""

    def __init__(self, clients: Clients, broker: Broker, *, accepts: bool = True) -> None:
        """`accepts` is whether it accepts clients. If not, its limits do not count."""
        self._clients = clients
        self._broker = broker
        self._accepts = accepts

    async def answer(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a question with its arguments."""
        answer = getattr(self, f"_{question}")(*arguments)
        return await answer if isinstance(answer, Awaitable) else answer

    def _all_clients(self) -> list[ClientFacts]:
        return [facts_of(one) for one in sessions_of(self._clients)]

    async def _selected_clients(self, selection: Selection) -> SelectedClients:
        return await SelectedClients.of(self._clients, selection)

    def _waiting_clients(self, number: int, name: bytes, most: int) -> list[ClientFacts]:
        found = (
            one
            for one in sessions_of(self._clients)
            if one.is_waiting and one.database.database_number == number and name in one.waits_on()
        )
        return [facts_of(one) for one in islice(found, most)]

    def _holders(self, owners: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ClientFacts]:
        server = self._broker.identity.rpartition(":")[2]
        ids = {int(token) for its_server, token in owners if its_server == server}
        return {(server, str(one.id)): facts_of(one) for one in self._clients.connected if one.id in ids}

    def _disconnect(self, ids: Iterable[int], reason: str) -> int:
        wanted = frozenset(ids)
        found = [one for one in sessions_of(self._clients) if one.id in wanted]
        for one in found:
            one.break_off(reason)
        return len(found)

    async def _unblock(self, number: int, with_error: bool) -> bool | BackendError:
        for one in sessions_of(self._clients):
            if one.id == number:
                try:
                    async with asyncio.timeout(_UNBLOCK_TIMEOUT):
                        return await one.unblock(UnblockedError() if with_error else None)
                except TimeoutError:
                    return BackendError(
                        "the backend has not answered in time: the client is unblocked when it has, or gets "
                        "what was taken for it"
                    )
        return False

    def _totals(self) -> Totals:
        clients, waiters, accepts = self._clients, self._broker.waiters, self._accepts
        memory, strangers, access = clients.memory, clients.strangers, clients.access
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak_bytes = used.ru_maxrss * 1024
        return Totals(
            protocols=Counter(one.PROTOCOL for one in clients.connected),
            strangers=len(strangers),
            blocked=sum(one.is_waiting for one in clients.connected),
            throttled=memory.throttled,
            waiting_operations=len(waiters),
            buffered_bytes=memory.held + strangers.held,
            accepted=clients.accepted,
            rejected=clients.rejected,
            evicted=memory.evicted + strangers.evicted,
            commands=clients.commands,
            commands_per_second=clients.commands_per_second,
            failed_logins=access.logins.denied,
            refused_commands=access.refused["cmd"],
            refused_queues=access.refused["key"],
            max_clients=clients.max_clients if accepts else 0,
            max_waiting=waiters.limit if accepts else 0,
            max_buffered_bytes=memory.limit if accepts else 0,
            resident_bytes=_resident_bytes() or peak_bytes,
            peak_bytes=peak_bytes,
            user_seconds=used.ru_utime,
            system_seconds=used.ru_stime,
        )

    def _process(self) -> tuple[str, Totals]:
        return self._broker.identity, self._totals()

    def _statistics(self) -> list[CommandStatistics]:
        return all_statistics()

    def _reset_statistics(self) -> bool:
        reset_statistics()
        self._clients.reset_counts()
        return True

    def _slow_commands(self, most: int) -> list[SlowCommand]:
        return self._clients.slow_log.latest(most)

    def _reset_slow_log(self) -> bool:
        self._clients.slow_log.reset()
        return True

    def _waiting(self, number: int, names: Sequence[bytes] | None) -> dict[bytes, Waiting]:
        for database in self._broker.databases:
            if database.database_number == number:
                return database.waiting(names)
        return {}

    def _calls(self) -> dict[int, CallStatistics]:
        return {one.database_number: one.call_statistics for one in self._broker.databases}

    def _report(self, name: str, argument: Any) -> Any:
        report = self._clients.reports.get(name)  # the supervisor has no listeners
        return None if report is None else report(argument)

    def _watch(self, others_watch: bool, lines: bytes) -> None:
        self._clients.show_to_others(wanted=others_watch)
        if lines:
            self._clients.monitors.show(lines)


def _resident_bytes() -> int:
    """Return the process's present size in memory; 0 if the system does not tell it."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _sum_statistics(answers: Iterable[list[CommandStatistics]]) -> list[CommandStatistics]:
    return total_statistics(one for answer in answers for one in answer)


def _sum_calls(answers: Sequence[dict[int, CallStatistics]]) -> dict[int, CallStatistics]:
    numbers = sorted({number for answer in answers for number in answer})
    return {
        number: CallStatistics.total(answer[number] for answer in answers if number in answer)
        for number in numbers
    }


def _sum_since_start(answers: Sequence[Totals]) -> Totals:
    total = sum_fields(Totals, answers)
    return Totals(**{name: getattr(total, name) for name in _SINCE_START})


# The questions about what is counted since the start, and how to add the counts of processes that have ended.
COUNTED: dict[str, Callable[[Any], Any]] = {
    "totals": _sum_since_start,
    "statistics": _sum_statistics,
    "calls": _sum_calls,
}


class Workers:
    """All processes of this server that serve clients. `ask_all` asks each of them, also this one."""

    def __init__(self, ask_all: AskAll) -> None:
        self._ask_all = ask_all

    async def clients(self) -> list[ClientFacts]:
        """Return the facts about all clients, by id."""
        found = [one for answer in await self._ask_all("all_clients") for one in answer]
        return sorted(found, key=attrgetter("id"))

    async def selected_clients(self, selection: Selection) -> SelectedClients:
        """Return some of the clients, in an order."""
        return SelectedClients.merged(await self._ask_all("selected_clients", selection), selection)

    async def waiting_clients(self, database_number: int, name: bytes, most: int) -> list[ClientFacts]:
        """Return the facts about the clients that wait on a queue: at most `most` of them."""
        answers = await self._ask_all("waiting_clients", database_number, name, most)
        return [one for answer in answers for one in answer][:most]

    async def holders(self, owners: Collection[tuple[str, str]]) -> dict[tuple[str, str], ClientFacts]:
        """Return the connected clients among the owners of reservations: each is a server, and a token."""
        answers = await self._ask_all("holders", owners)
        return {owner: one for answer in answers for owner, one in answer.items()}

    async def disconnect(self, ids: Sequence[int], reason: str) -> int:
        """Disconnect the clients with these ids. Return how many were still connected."""
        return sum(await self._ask_all("disconnect", tuple(ids), reason))

    async def unblock(self, number: int, *, with_error: bool) -> bool:
        """End what the client with this id waits for, as if its time were up or with UnblockedError.

        Return False if it does not wait, or gets something. Raise BackendError if this is not known in time.
        """
        answers = await self._ask_all("unblock", number, with_error)
        for answer in answers:
            if isinstance(answer, BackendError):
                raise answer
        return any(answers)

    async def totals(self) -> Totals:
        """Return the counts of all processes together."""
        answers: list[Totals] = await self._ask_all("totals")
        return sum_fields(Totals, answers)

    async def processes(self) -> dict[str, Totals]:
        """Return the counts of each process that answers, by its name on the backend."""
        return dict(await self._ask_all("process"))

    async def statistics(self) -> list[CommandStatistics]:
        """Return the statistics of the commands that have been called or refused, by protocol and name."""
        return _sum_statistics(await self._ask_all("statistics"))

    async def reset_statistics(self) -> None:
        """Set the statistics of commands and connections to zero."""
        await self._ask_all(RESET_STATISTICS)

    async def slow_commands(self, most: int) -> list[SlowCommand]:
        """Return the latest `most` commands of all slow logs, latest first."""
        found = [one for answer in await self._ask_all("slow_commands", most) for one in answer]
        return sorted(found, key=attrgetter("ended"), reverse=True)[:most]

    async def reset_slow_log(self) -> None:
        """Remove all commands from the slow logs."""
        await self._ask_all("reset_slow_log")

    async def waiting(
        self, database_number: int, names: Sequence[bytes] | None = None
    ) -> Mapping[bytes, Waiting]:
        """Return how many operations wait on queues of a database: on these, or on all that have any."""
        found = defaultdict[bytes, Counter[Line]](lambda: Counter(dict.fromkeys(Line, 0)))
        for answer in await self._ask_all("waiting", database_number, names):
            for name, waiting in answer.items():
                found[name].update(waiting)
        return found

    async def calls(self) -> dict[int, CallStatistics]:
        """Return the totals of the calls of the library, by the number of the database."""
        return _sum_calls(await self._ask_all("calls"))

    async def databases(self) -> list[int]:
        """Return the numbers of the databases in use."""
        return list(await self.calls())

    async def reports(self, name: str, about: Any) -> list[Any]:
        """Return what the listener with this report says of something in each process: see add_report."""
        return await self._ask_all("report", name, about)

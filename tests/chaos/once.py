"""Producers that put with transaction ids, and send a put again until it is answered.

A message that was put with an id must be there exactly once, whatever broke in between.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tests.chaos.caller import Caller
from tests.chaos.journal import Journal
from tests.chaos.ledger import NamedLedger
from tests.chaos.log_ledger import LogLedger
from tests.chaos.messages import make_name, message
from tests.chaos.producers import Pace
from tests.chaos.redis_workers import TTRS
from tests.chaos.workers import MAX_PRIORITY
from tests.support.ledger import Event
from tests.support.waiters import Words

# The prefixes of the names of queues and logs into which these producers put; nobody else puts into them.
ONCE_PREFIX, LOG_PREFIX = "once-", "log-"
# Numbers of puts in one write.
_BATCHES = (1, 1, 1, 5)
# Seconds after which a producer without a reply tries again, perhaps through another server. A proxy that is
# stopped for long may do the first put after the second.
_PATIENCE = (0.2, 1.0, 5.0)
# The shares of writes after which a producer hangs up at once; of answered puts that are sent again; of
# answered puts whose outcome is asked for; and of puts without an answer whose outcome is asked for first.
_HANG_UPS = 0.04
_AGAIN = 0.05
_ASKED = 0.3
_ASKED_BEFORE = 0.5
# Seconds within which a producer hangs up, and for which it waits for the reply to a put that is answered.
_STAY = 0.02
_RECHECK = 2.0


class PutLedger(Protocol):
    """A ledger into which puts are noted."""

    def send(self, names: list[bytes], event: Event) -> None:
        """Note messages that are about to be put."""

    def acknowledge(self, names: list[bytes]) -> None:
        """Note messages whose put was replied to."""


@dataclass
class Put:
    """One put with its id, and the commands to send for it. `answer` is the reply, once it has one."""

    id: str
    queue: str
    names: list[bytes]
    commands: list[Words]
    answer: Any = None
    sent: int = 0

    @property
    def verb(self) -> str:
        """The command that puts."""
        return str(self.commands[-1 if self.commands[0][0] != "MULTI" else -2][0])

    def reply_in(self, replies: Sequence[Any]) -> Any:
        """Return the reply to the put from those to its commands; None if it did not come."""
        if len(replies) < len(self.commands):
            return None
        last = replies[-1]
        if self.commands[0][0] == "MULTI" and isinstance(last, list):
            return last[-1]
        return last


@dataclass
class OnceProducer:
    """Puts into one queue with transaction ids, through any of its callers, until the pace is over.

    After an error, a broken connection, or too long a time it sends the same put again. `number` is part of
    the names of its messages and of the ids.
    """

    callers: Sequence[Caller]
    number: int
    queue: str
    ledger: PutLedger
    journal: Journal
    pace: Pace
    chance: random.Random
    patience: ClassVar[Sequence[float]] = _PATIENCE
    _made: int = field(default=0, init=False)
    _puts: int = field(default=0, init=False)

    async def work(self) -> None:
        while await self.pace.next():
            await self.settle([self.new_put() for _ in range(self.chance.choice(_BATCHES))])
        for caller in self.callers:
            caller.close()

    def new_put(self) -> Put:
        """Return a put of new messages, which are noted as sent."""
        self._puts += 1
        transaction = f"t{self.number}-{self._puts}"
        command, most = self.chance.choice(
            (("PRESSURE.PUT", 1), ("SADD", 1), ("SADD", 20), ("LPUSH", 5), ("RPUSH", 20))
        )
        names = self._new(self.chance.randint(1, most))
        if command == "PRESSURE.PUT":
            return Put(transaction, self.queue, names, [self._put(transaction, names[0])])
        commands: list[Words] = [
            ("PRESSURE.TXN", transaction),
            (command, self.queue, *map(message, names)),
        ]
        if self.chance.random() < 0.1:
            commands = [("MULTI",), *commands, ("EXEC",)]
        return Put(transaction, self.queue, names, commands)

    def _new(self, count: int) -> list[bytes]:
        names = [make_name(self.number, self._made + n) for n in range(count)]
        self._made += count
        caller = self.callers[0]
        self.ledger.send(names, Event(caller.name, self.queue, caller.proxy, time.monotonic()))
        return names

    def _put(self, transaction: str, name: bytes) -> Words:
        words: Words = ("PRESSURE.PUT", self.queue, message(name), "TXN", transaction)
        return (*words, "NX") if self.chance.random() < 0.3 else words

    async def settle(self, puts: list[Put]) -> None:
        """Send puts until each is answered."""
        while puts:
            caller = self.chance.choice(self.callers)
            replies, reason = await self._send(caller, puts)
            unanswered: list[Put] = []
            for put in puts:
                replies_to_put, replies = replies[: len(put.commands)], replies[len(put.commands) :]
                reply = put.reply_in(replies_to_put)
                if replies_to_put and isinstance(replies_to_put[0], Exception) and len(put.commands) > 1:
                    # Then the put may have been done without its id.
                    self.journal.complain(f"{caller.name}: {replies_to_put[0]} to {put.commands[0][0]!s}")
                if reply is None or isinstance(reply, Exception):
                    unanswered.append(put)
                    why = f"error {reply.args[0].split()[0]}" if isinstance(reply, Exception) else reason
                    await self._note_resend(put, why)
                else:
                    await self._note_answer(put, reply, caller)
            puts = unanswered

    async def _send(self, caller: Caller, puts: Sequence[Put]) -> tuple[list[Any], str]:
        """Send puts in one write. Return the replies, and why there are no more of them."""
        commands = [words for put in puts for words in put.commands]
        if self.chance.random() < _HANG_UPS:
            await caller.send(*commands)
            await asyncio.sleep(self.chance.uniform(0, _STAY))
            return caller.hang_up(reset=self.chance.random() < 0.5), "hung up"
        return await self._ask(caller, commands, self.chance.choice(self.patience))

    async def _ask(self, caller: Caller, commands: Sequence[Words], patience: float) -> tuple[list[Any], str]:
        try:
            async with asyncio.timeout(patience):
                return await caller.ask(*commands), "connection broken"
        except TimeoutError:
            caller.close()
            return [], "no reply in time"

    async def _note_resend(self, put: Put, why: str) -> None:
        """Count a put that is to be sent again, sometimes with what has become of it so far."""
        state = "not asked whether done"
        if self.chance.random() < _ASKED_BEFORE:
            outcome = await self._outcome(put)
            state = "done already" if outcome and outcome[0] == b"done" else "not done yet"
        self.journal.resends[f"{why}, {state}"] += 1

    async def _note_answer(self, put: Put, reply: Any, caller: Caller) -> None:
        put.answer = reply
        wrong = self._check(put, reply, caller)
        if wrong:
            self.journal.complain(f"{caller.name}: {put.verb} with id {put.id}: {wrong}")
        self.ledger.acknowledge(put.names)
        if self.chance.random() < _ASKED:
            await self._check_outcome(put)
        if self.chance.random() < _AGAIN:
            await self._send_again(put)

    def _check(self, put: Put, reply: Any, caller: Caller) -> str:
        """Return what is wrong with the reply to a put; "" if nothing is."""
        expected = 1 if put.verb == "PRESSURE.PUT" else len(put.names)
        is_right = reply >= expected if put.verb in ("LPUSH", "RPUSH") else reply == expected
        return "" if is_right else f"{reply!r} for {len(put.names)} new messages"

    async def _check_outcome(self, put: Put) -> None:
        outcome = await self._outcome(put)
        if outcome and not self._is_outcome(put, outcome):
            self.journal.contradict(
                f"the outcome of the answered put {put.id} into {put.queue} ({put.verb} of {len(put.names)}, "
                f"the first {put.names[0].decode()}, answer {put.answer!r}) is {outcome!r}"
            )

    def _is_outcome(self, put: Put, outcome: list[Any]) -> bool:
        return outcome == [b"done", None]

    async def _send_again(self, put: Put) -> None:
        """Send a put that is answered. The answer must be the same."""
        caller = self.chance.choice(self.callers)
        replies, _ = await self._ask(caller, put.commands, _RECHECK)
        reply = put.reply_in(replies)
        self.journal.resends["after the reply"] += 1
        if reply is not None and not isinstance(reply, Exception) and reply != put.answer:
            self.journal.contradict(
                f"{caller.name}: {put.verb} with id {put.id} returned {put.answer!r}, and then {reply!r}"
            )

    async def _outcome(self, put: Put) -> list[Any] | None:
        """Return the reply to PRESSURE.OUTCOME, or None."""
        caller = self.chance.choice(self.callers)
        replies, _ = await self._ask(caller, [("PRESSURE.OUTCOME", put.queue, put.id)], _RECHECK)
        return replies[0] if replies and isinstance(replies[0], list) else None


@dataclass
class OnceJobProducer(OnceProducer):
    """Puts jobs with transaction ids. The same id returns the same job."""

    jobs: NamedLedger

    def new_put(self) -> Put:
        self._puts += 1
        transaction = f"t{self.number}-{self._puts}"
        (name,) = self._new(1)
        ttr = self.chance.choice(TTRS)
        self.jobs.send_job(name, ttr)
        words: Words = ("PRESSURE.PUT", self.queue, message(name), "TXN", transaction, "TTR", ttr)
        if self.chance.random() < 0.5:
            words += ("PRIORITY", self.chance.randrange(MAX_PRIORITY))
        if self.chance.random() < 0.1:
            words += ("DELAY", round(self.chance.uniform(0.001, 1), 3))
        return Put(transaction, self.queue, [name], [words])

    def _check(self, put: Put, reply: Any, caller: Caller) -> str:
        self.jobs.inserted(put.names[0], reply)
        return ""


@dataclass
class OnceLogProducer(OnceProducer):
    """Puts into a log with transaction ids. The same id returns the same offset."""

    log: LogLedger

    def _put(self, transaction: str, name: bytes) -> Words:
        words: Words = ("PRESSURE.PUT", self.queue, message(name), "TXN", transaction)
        return (*words, "OFFSET") if self.chance.random() < 0.8 else words

    def _check(self, put: Put, reply: Any, caller: Caller) -> str:
        if "OFFSET" in put.commands[0]:
            self.log.locate(put.names[0], reply, caller.name)
            return ""
        return super()._check(put, reply, caller)

    def _is_outcome(self, put: Put, outcome: list[Any]) -> bool:
        state, first = outcome
        if state != b"done" or first is None:
            return False
        self.log.locate_all(put.names, first, f"outcome of {put.id}")
        return True

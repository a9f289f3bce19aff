"""Run cells: prepare the queues, let the wait and the event begin at their moments, and judge the answer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

from tests.waiting.matrix.cells import AFTER, BEFORE, DUE, END, START, Cell
from tests.waiting.matrix.events import CLOSE, NO_QUEUE, RESET
from tests.waiting.matrix.machine import Machine
from tests.waiting.matrix.stand import UNIX, Stand
from tests.waiting.matrix.wires import RESP, Wire, packed

OK, LATE, MISSED, WRONG = "ok", "late", "missed", "wrong"
# Seconds after which an answer is late, and after which it is missed.
TOLERANCE, PATIENCE = 0.05, 3.0
# Seconds in which a set-up command must be answered.
_SETUP_TIMEOUT = 20.0
# Times in seconds: the wait begins well before the event; a question is asked so long after what precedes it.
_WELL_BEFORE, _LATER = 0.05, 0.01
# asyncio's timers are late by about a millisecond; the rest of the time is spent in a loop.
_SPIN = 0.002
# A due time is in milliseconds, and the backend's clock decides.
_EARLY = 0.005
# An answer crosses several processes, each of which may be as late as the machine.
_EXCUSED = 4
_IN_FLIGHT, _PREPARING, _TRIES = 100, 6, 5
# Seconds until a message is put after a deletion that may have come before the wait.
_CREATED_AFTER = 0.2
ANY = "any"
_REFUSALS = ("Error", "NOT_FOUND", "INTERNAL_ERROR", "OUT_OF_MEMORY", "DRAINING")
_numbers = count(1)


class SetupError(Exception):
    """A command of the preparation was refused."""


@dataclass(frozen=True)
class Result:
    """What became of a cell: `lateness` is in seconds, `why` says what was wrong."""

    cell: Cell
    kind: str
    lateness: float = 0.0
    why: str = ""
    machine: float = 0.0

    @property
    def is_excused(self) -> bool:
        """Whether the machine may have made the answer late: then the cell is repeated."""
        return self.kind == LATE and self.lateness < TOLERANCE + _EXCUSED * self.machine


def _commands(template: str) -> list[list[str]]:
    return [command.split() for command in template.split(";") if command.strip()]


class _Attempt:
    """One try of a cell, on queues of its own."""

    def __init__(self, cell: Cell, stand: Stand) -> None:
        self._cell = cell
        self._stand = stand
        number = next(_numbers)
        name = f"w{number}"
        self._words = {
            "q": f"{name}+g" if cell.event.of_group else name,
            "x": name if cell.event.of_group else f"{name}x",
            "m": f"m{number:07d}",
            "s": str(cell.event.due),
            "large": "x" * 400_000,
            **{letter: f"{name}{letter}" for letter in "dyab"},
        }
        self._words["k"] = f"__pressure__:{self._words['q']}"
        self._words["kx"] = f"__pressure__:{self._words['x']}"
        at_end = cell.moment.kind == END
        seconds = cell.event.due if at_end else float(cell.waiter.forever)
        self._words |= {"t": f"{seconds:g}", "ms": str(round(seconds * 1000))}
        self.act_began = self.act_sent = self.wait_sent = 0.0
        self._open: list[Wire] = []
        self._has_asked = False

    def _packed(self, by: str, template: str) -> bytes:
        filled = ([word.format(**self._words) for word in words] for words in _commands(template))
        return b"".join(packed(by, words) for words in filled)

    async def _connect(self, by: str, server: str) -> Wire:
        wire = await self._stand.connect(by, server)
        self._open.append(wire)
        return wire

    async def _do(self, wire: Wire, template: str) -> None:
        for words in _commands(template):
            filled = [word.format(**self._words) for word in words]
            reply = await wire.call(*filled)
            if isinstance(reply, Exception) or reply is None or reply == []:
                raise SetupError(f"{' '.join(filled)[:200]}: {reply}")
            self._note_id(filled[0], reply)

    def _note_id(self, name: str, reply: Any) -> None:
        match name:
            case "PRESSURE.PUT":
                self._words["id"] = str(reply)
            case "PRESSURE.RESERVE":
                self._words["id"] = str(reply[1])
            case "PRESSURE.READ":
                self._words["id"] = str(reply[0][0])
            case "reserve":
                self._words["id"] = reply[1].decode()

    async def prepare(self) -> None:
        """Create the queues, and connect the clients."""
        cell, event, waiter = self._cell, self._cell.event, self._cell.waiter
        control = await self._stand.borrow(RESP, cell.place.event)
        await self._do(control, event.create)
        if "{a}" in waiter.wait + waiter.before:
            await self._do(control, "PRESSURE.CREATE {a}")
        if cell.question.of_other:
            log = "{x}" if event.of_group else "{q}"
            await self._do(control, f"LPUSH {log} other; PRESSURE.RESERVE {{q}} TTR 100 DETACHED asker")
            self._words["other"] = self._words["id"]
        await self._do(control, f"{waiter.prepare}; {event.prepare}")
        self._actor = await self._connect(event.by, cell.place.event)
        if event.by == UNIX:
            await self._leave_unread(control, event.before)
        else:
            await self._do(self._actor, event.before)
        self._stand.give_back(control, cell.place.event)
        self._waiter = await self._connect(waiter.by, cell.place.waiter)
        await self._do(self._waiter, waiter.before)
        if cell.question.ask:
            self._asker = await self._stand.borrow(cell.question.by, cell.place.waiter)
        self._question = self._packed(cell.question.by, cell.question.ask)
        self._wait = self._packed(waiter.by, waiter.wait)
        if event.act not in (CLOSE, RESET):
            self._request = self._packed(event.by, event.act)

    async def _leave_unread(self, control: Wire, before: str) -> None:
        """Let the actor take messages, of which it does not read the reply."""
        self._actor.deafen()
        self._actor.send(self._packed(RESP, before))
        while await control.call("LLEN", self._words["q"]):
            pass

    # What happens at a moment.

    def _begin_wait(self) -> None:
        self.wait_sent = self._waiter.send(self._wait)

    def _act(self) -> None:
        event = self._cell.event
        self.act_began = perf_counter()
        if event.act == CLOSE:
            self._actor.close()
        elif event.act == RESET:
            self._actor.reset()
        else:
            self._actor.send(self._request)
        self.act_sent = perf_counter()

    def _put_question(self) -> None:
        self._asker.send(self._question)
        self._has_asked = True

    async def _act_and_see(self) -> None:
        """Act, and return when the replies have come."""
        self._act()
        for _ in _commands(self._cell.event.act):
            await asyncio.wait_for(self._actor.reply(), _SETUP_TIMEOUT)

    async def play(self) -> None:
        """Let the wait, the question and the event happen."""
        event, moment = self._cell.event, self._cell.moment
        offset = moment.offset
        if moment.kind in (BEFORE, END):
            await self._act_and_see()
            now = perf_counter()
            wait_at, question_at = now + offset, now + offset + _LATER
            await self._at([(wait_at, self._begin_wait), (question_at, self._put_question)])
            return
        begin = perf_counter() + _SPIN
        match moment.kind:
            case "after":
                wait_at, act_at = begin, begin + _WELL_BEFORE
            case "start":
                wait_at, act_at = begin + max(0.0, -offset), begin + max(0.0, offset)
            case _:
                wait_at, act_at = begin + event.due - offset, begin
        if moment.kind == DUE:
            question_at = (wait_at + act_at + event.due) / 2
        elif event.due and moment.kind in (START, AFTER):
            question_at = max(wait_at, act_at) + _LATER
        else:
            question_at = (wait_at + act_at) / 2
        steps = [(wait_at, self._begin_wait), (act_at, self._act), (question_at, self._put_question)]
        await self._at(steps)

    async def _at(self, steps: Sequence[tuple[float, Callable[[], None]]]) -> None:
        for time, step in sorted(steps, key=lambda timed: timed[0]):
            if step == self._put_question and not self._cell.question.ask:
                continue
            if time - perf_counter() > _SPIN:
                await asyncio.sleep(time - perf_counter() - _SPIN / 2)
            while perf_counter() < time:
                pass
            step()

    async def judge(self, machine: Machine) -> Result:
        """Wait for the answer, and return what became of the cell."""
        cell, event = self._cell, self._cell.event
        due = max(self.wait_sent, self.act_sent + event.due)
        wanted = event.wanted
        if wanted == NO_QUEUE and cell.moment.kind == START:
            # The wait may have begun after the deletion.
            wanted = ANY
            if await self._still_waits(_CREATED_AFTER):
                due = await self._put_again()
        try:
            came, reply = await asyncio.wait_for(self._waiter.reply(), due + PATIENCE - perf_counter())
        except TimeoutError:
            if cell.question.takes and self._words["m"] in _text(await self._answer_to_question()):
                return Result(cell, OK)  # on a busy machine the question may come after the event
            return Result(cell, MISSED, why=f"no answer{self._refusal()}{await self._room()}")
        lateness, why = came - due, _mistake(reply, wanted, self._words["m"])
        calm = machine.lateness(due - 0.1, came)
        earliest = self.act_began + event.due - (_EARLY if event.due else 0.0)
        if came < earliest and not event.races:
            return Result(
                cell, WRONG, lateness, f"answered {earliest - came:.3f} s before the event: {reply!r:.100}"
            )
        if why:
            return Result(
                cell, MISSED if _is_nothing(reply) else WRONG, lateness, why + self._refusal(), calm
            )
        return Result(cell, LATE if lateness > TOLERANCE else OK, lateness, machine=calm)

    async def _answer_to_question(self) -> Any:
        """Return the answer, None if no question was asked or its answer has been read."""
        if not self._has_asked:
            return None
        self._has_asked = False
        reply = await self._asker.reply()
        self._stand.give_back(self._asker, self._cell.place.waiter)
        return reply

    async def _still_waits(self, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return self._waiter.is_idle

    async def _put_again(self) -> float:
        """Put a message for a waiter that came too late for the event, and return the time."""
        control = await self._stand.borrow(RESP, self._cell.place.event)
        now = perf_counter()
        await control.call("LPUSH", self._words["q"], self._words["m"])
        self._stand.give_back(control, self._cell.place.event)
        return now

    async def _room(self) -> str:
        """Return what a new put is answered while another waits."""
        if not self._cell.waiter.puts:
            return ""
        control = await self._stand.borrow(RESP, self._cell.place.event)
        reply = await control.call("PRESSURE.PUT", self._words["q"], "new", "NOWAIT")
        self._stand.give_back(control, self._cell.place.event)
        return f"; a new put is answered {reply!s:.40}"

    def _refusal(self) -> str:
        """Return the errors with which the event was answered."""
        errors = [reply for _, reply in self._actor.unread() if _is_refused(reply)]
        return f"; the event was refused: {errors}" if errors else ""

    async def clean(self) -> None:
        """Close the clients, and delete the queues."""
        await self._answer_to_question()
        for wire in self._open:
            wire.close()
        control = await self._stand.borrow(RESP, self._cell.place.event)
        await control.call("DEL", *(self._words[letter] for letter in "qxdyab"))
        self._stand.give_back(control, self._cell.place.event)


def _text(reply: Any) -> str:
    return f"{type(reply).__name__} {reply}"


def _is_refused(reply: Any) -> bool:
    return reply == 0 or any(word in _text(reply) for word in _REFUSALS)


def _is_nothing(reply: Any) -> bool:
    """Return whether the reply says that the time is up."""
    return reply is None or reply in ([], [b"TIMED_OUT"]) or _text(reply).startswith("ReplyError EMPTY")


def _mistake(reply: Any, wanted: str, message: str) -> str:
    """Return what is wrong with a reply, or ""."""
    text = _text(reply)
    is_error = isinstance(reply, Exception)
    match wanted:
        case "message":
            right = message in text and not is_error
        case "closed":
            right = is_error and "CLOSED" in text
        case "no queue":
            right = is_error and ("NOQUEUE" in text or "NOGROUP" in text)
        case "any":
            right = message in text or is_error or not _is_nothing(reply)
        case _:
            right = not is_error and reply is not None
    return "" if right else text[:200]


async def try_once(cell: Cell, stand: Stand, machine: Machine, preparing: asyncio.Semaphore) -> Result:
    """Run a cell."""
    attempt = _Attempt(cell, stand)
    try:
        async with preparing:
            await asyncio.wait_for(attempt.prepare(), _SETUP_TIMEOUT)
        await attempt.play()
        result = await attempt.judge(machine)
    except (SetupError, TimeoutError, OSError) as error:
        result = Result(cell, WRONG, why=f"{type(error).__name__} {error}")
    async with preparing:
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(attempt.clean(), _SETUP_TIMEOUT)
    return result


async def run(
    cells: Iterable[Cell],
    stand: Stand,
    report: Callable[[Result], None],
    machine: Machine,
    in_flight: int = _IN_FLIGHT,
) -> None:
    """Run the cells, many at once. One that was late as the machine was is repeated alone."""
    measuring = asyncio.create_task(machine.measure(stand))
    preparing = asyncio.Semaphore(_PREPARING)
    doubtful: list[Cell] = []
    rest = iter(cells)

    async def work() -> None:
        for cell in rest:
            result = await try_once(cell, stand, machine, preparing)
            if result.is_excused:
                doubtful.append(cell)
            else:
                report(result)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    for cell in doubtful:
        for _ in range(_TRIES):
            result = await try_once(cell, stand, machine, preparing)
            if not result.is_excused:
                break
        report(result)
    measuring.cancel()

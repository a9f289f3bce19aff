"""The connections to the backend, in memory: calls in flight, watched keys, confirmations of durability."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pressure_server.backend.link import Heartbeats, Link
from pressure_server.backend.requests import BackendRequest, LibraryCall
from pressure_server.backend.watch import Armed
from pressure_server.errors import BackendError, OutcomeUnknownError
from tests.interleavings.backend import Backend
from tests.support.scripts import header_of

_NOTHING = object()


@dataclass
class _Sent:
    call: LibraryCall
    reply: Any = _NOTHING


class LinkInMemory(Link):
    """A link without a channel, to a backend that is always up."""

    def __init__(self) -> None:
        self.number = 0
        self.run_id = ""
        self.heartbeats = cast(Heartbeats, object())
        self.is_back = None

    @property
    def is_up(self) -> bool:
        """See Link."""
        return True

    @property
    def pause_after_deaths(self) -> float:
        """See Link."""
        return 0.0


class ModelLink(LinkInMemory):
    """A link that does the calls in order, and answers them in order, when the model asks for it."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._in_flight: deque[_Sent] = deque()

    def send(self, request: BackendRequest) -> None:
        """See Link."""
        self._in_flight.append(_Sent(cast(LibraryCall, request)))

    def do_one(self) -> bool:
        """Do the next call. Return False if there is none."""
        for sent in self._in_flight:
            if sent.reply is _NOTHING:
                call = sent.call
                words = [*header_of(call), *call.arguments()]
                sent.reply = self._backend.call([*call.keys, call.caller.records], words)
                return True
        return False

    def answer_one(self) -> bool:
        """Answer the oldest call. Return False if it has not been done."""
        if not self._in_flight or self._in_flight[0].reply is _NOTHING:
            return False
        sent = self._in_flight.popleft()
        sent.call.received(sent.reply)
        return True

    def lose(self, *, resends: bool) -> None:
        """Lose the connection. With `resends`, the calls are sent again; else their outcome stays unknown."""
        if not resends:
            lost, self._in_flight = self._in_flight, deque()
            for sent in lost:
                sent.call.received(OutcomeUnknownError())
            return
        for sent in self._in_flight:
            sent.reply = _NOTHING
            sent.call.may_be_done = True


class ModelWatch:
    """A key watch that sends replies and notifications in order, when the model asks for it."""

    is_up = True

    def __init__(self) -> None:
        self.exists: Callable[[bytes], bool] = lambda _: False
        self.notify: Callable[[bytes], None] = lambda _: None
        self._to_arm: deque[tuple[Sequence[bytes], Armed]] = deque()
        self._outgoing: deque[Callable[[], None]] = deque()
        self._watched: set[bytes] = set()

    def arm(self, _number: int, keys: Sequence[bytes], armed: Armed, _value_key: bytes | None = None) -> None:
        self._to_arm.append((keys, armed))

    def disarm(self, _number: int, keys: Iterable[bytes]) -> None:
        """See Watch."""

    def changed(self, key: bytes) -> None:
        """Notify the server, if it watches this key."""
        if key in self._watched:
            self._watched.remove(key)
            self._outgoing.append(lambda: self.notify(key))

    def arm_one(self) -> bool:
        """Arm the next keys. Return False if there are none."""
        if not self._to_arm:
            return False
        keys, armed = self._to_arm.popleft()
        existing = sum(map(self.exists, keys))
        self._watched.update(keys)
        self._outgoing.append(lambda: armed(existing, None))
        return True

    def send_one(self) -> bool:
        """Send the next reply or notification. Return False if there is none."""
        if not self._outgoing:
            return False
        self._outgoing.popleft()()
        return True


class ModelDurability:
    """Durability that is confirmed when the model asks for it."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._waiting: deque[Callable[[BackendError | None], None]] = deque()

    def is_proven(self, _run: str) -> bool:
        """Return whether the answers are safe without a wait."""
        return False

    def when_durable(self, _run: str, follows: Callable[[BackendError | None], None]) -> None:
        if self.is_enabled:
            self._waiting.append(follows)
        else:
            follows(None)

    def confirm_one(self) -> bool:
        """Confirm the oldest change. Return False if there is none."""
        if not self._waiting:
            return False
        self._waiting.popleft()(None)
        return True

"""Diagnosis: what is wrong with a queue, told from how it looked at two moments, and what would mend it.

Pure. A client that is slow or suspended cannot be told from one that has died: how far apart the moments are
is up to whoever asks. docs/repair.md has the reasoning, and every state in which a native client can die.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pressure_server.broker.names import printable


class Mend(Enum):
    """What repair can do; the value is its name in doctor.lua."""

    GIVE_BACK_PRODUCER = b"producer_free"
    GIVE_BACK_CONSUMER = b"consumer_free"
    UNPARK_PRODUCER = b"producer_turn"
    UNPARK_CONSUMER = b"consumer_turn"
    PUSH_NOT_FULL = b"not_full"
    TAKE_NOT_FULL = b"full"
    TRIM = b"trim"
    WAKE = b"wake"
    UNLINK = b"unlink"
    SETTLE_STATISTICS = b"statistics"


class Trouble(Enum):
    """What can be wrong with a queue; the value names it."""

    HALF_CREATED = "half created"
    PRODUCER_STUCK = "producer stuck"
    CONSUMER_STUCK = "consumer stuck"
    TOKEN_PARKED = "token parked"  # noqa: S105 -- a token of the protocol, and no password
    NO_NOT_FULL = "no :not_full token"
    TOO_MANY_TOKENS = "too many tokens"
    NOT_FULL_ON_FULL = ":not_full token on a full queue"
    STATISTICS = "statistics"
    HALF_DELETED = "half deleted"
    LEFT_BEHIND = "left behind"
    LONE_LIST = "a list alone"


@dataclass(frozen=True, slots=True)
class Role:
    """The producer or the consumer of a queue, as a script saw it.

    `free` is how many tokens :…_free has, `parked` how many a server of ours keeps aside. `holder` is the
    name written last; None where there is none. `messages` and `size` (in bytes) are what it has counted.
    `view` is opaque: it changes when any of the others does.
    """

    name: str
    free: int
    parked: int
    holder: bytes | None
    messages: int
    size: int
    view: bytes

    @property
    def is_held(self) -> bool:
        """Whether a native client has the token: a server of ours gives it back before anybody can look."""
        return self.free + self.parked == 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment. `bound` is None where it does not exist; `keys` are then what there is of it.

    `keys` are the suffixes that follow its base key; b"" is the list of messages. `view` is opaque: it
    changes when anything else does.
    """

    bound: int | None
    length: int
    closed: int
    not_full: int
    keys: tuple[bytes, ...]
    producer: Role
    consumer: Role
    view: bytes

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Snapshot:
        """From what `examine` in doctor.lua has returned."""
        bound, length, closed, not_full, keys, producer, consumer, view = reply
        return cls(
            None if bound is None else _number(bound),
            length,
            closed,
            not_full,
            tuple(keys),
            _role("producer", producer),
            _role("consumer", consumer),
            view,
        )

    @property
    def has_room(self) -> bool:
        """Whether the bound lets one more message in."""
        return self.bound == 0 or (self.bound is not None and self.length < self.bound)

    @property
    def uncounted(self) -> int:
        """How many messages more there are than the statistics say; negative where there are fewer."""
        return self.length - self.producer.messages + self.consumer.messages

    @property
    def roles_are_free(self) -> bool:
        """Whether no native client is at work."""
        return not self.producer.is_held and not self.consumer.is_held

    def could_go_on(self, role: Role) -> bool:
        """Whether a live holder of the role would not be waiting (pressure 0.15, Put and Get).

        A producer waits where :not_full has no token, a consumer where there is no message; neither where
        the queue is closed, and each has written its name before. Who is blocked gets what is pushed at
        once: what can be seen is not waited for.
        """
        comes = self.not_full if role.name == "producer" else self.length
        return comes > 0 or self.closed > 0 or role.holder is None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a queue: what is seen, what it means, and what would mend it."""

    trouble: Trouble
    seen: str
    means: str
    remedy: str
    mends: tuple[Mend, ...]

    @property
    def key(self) -> Key:
        """What is the same for the same trouble of the same role, however the queue changes."""
        return self.trouble, self.mends


Key = tuple[Trouble, tuple[Mend, ...]]


def diagnose(before: Snapshot, after: Snapshot) -> list[Finding]:
    """What is wrong with a queue, and was so at both moments; nothing that is about to be put right."""
    if after.bound is None:
        return list(_of_keys_without_a_queue(before, after))
    if before.bound is None:
        return []
    if before.view == after.view and _is_half_created(after):
        return [_half_created(after)]
    return [
        *_of_roles(before, after),
        *_of_tokens(before, after),
        *_of_statistics(before, after),
    ]


def suspicions(snapshot: Snapshot) -> list[Finding]:
    """What would be wrong if it stayed so: most of it a live client is about to put right."""
    return diagnose(snapshot, snapshot)


def _is_half_created(queue: Snapshot) -> bool:
    roles = (queue.producer, queue.consumer)
    untouched = all(role.holder is None and role.messages == 0 and role.parked == 0 for role in roles)
    pushed = (queue.producer.free, queue.consumer.free, queue.not_full)
    return untouched and queue.length == queue.closed == 0 and pushed in ((0, 0, 0), (1, 0, 0), (1, 1, 0))


def _half_created(queue: Snapshot) -> Finding:
    missing = [role for role in (queue.producer, queue.consumer) if role.is_held]
    names = [f":{role.name}_free" for role in missing] + [":not_full"]
    return Finding(
        Trouble.HALF_CREATED,
        f"the queue has a bound, but {_listed(names)} never had a token, and nobody has used it",
        "a native client died while it created the queue: whoever uses it waits for ever",
        f"push what is missing: {_listed(names)}",
        (*(_GIVE_BACK[role.name] for role in missing), Mend.PUSH_NOT_FULL),
    )


def _of_roles(before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    for earlier, role in ((before.producer, after.producer), (before.consumer, after.consumer)):
        if earlier.view != role.view:
            continue
        if role.is_held and before.could_go_on(earlier) and after.could_go_on(role):
            yield _stuck(role, after)
        elif role.parked and not role.free:
            yield Finding(
                Trouble.TOKEN_PARKED,
                f"the {role.name}'s token is where a server of ours keeps it while it has its turn",
                "a pressure-server died, or lost its backend, in between: native clients wait for the role",
                f"move it back to :{role.name}_free",
                (_UNPARK[role.name],),
            )


def _stuck(role: Role, queue: Snapshot) -> Finding:
    producer = role.name == "producer"
    if role.holder is None:
        why = "nobody has written a name, as a client does before it waits for anything"
    elif queue.closed:
        why = "the queue is closed, so there is nothing it could wait for"
    elif producer:
        why = "there is a :not_full token, so it does not wait for room"
    else:
        why = f"there {_are(queue.length, 'message')}, so it does not wait for one"
    loss = (
        "a message it had taken is lost with it" if not producer else "its message may or may not be queued"
    )
    return Finding(
        Trouble.PRODUCER_STUCK if producer else Trouble.CONSUMER_STUCK,
        f"the {role.name} role is held{_by(role)}, who does nothing; {why}",
        f"a native {role.name} died in the middle of its work, and {loss}: all other {role.name}s wait",
        f"give the role back (push :{role.name}_free), and correct the statistics",
        (_GIVE_BACK[role.name], Mend.SETTLE_STATISTICS),
    )


def _of_tokens(before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    def missing(queue: Snapshot) -> bool:
        return queue.not_full == 0 and queue.has_room

    def on_full(queue: Snapshot) -> bool:
        return queue.not_full > 0 and not queue.has_room and queue.consumer.free > 0

    if missing(after) and before.view == after.view:
        held = after.producer.is_held
        yield Finding(
            Trouble.NO_NOT_FULL,
            "there is room, but no :not_full token"
            + (f"; the producer role is held{_by(after.producer)}" * held),
            "a native client died before it pushed the token"
            + (" (if the producer lives, it waits for it)" if held else "")
            + ": native producers wait for room that is there",
            "push the token" + (", and look again whether the producer goes on" if held else ""),
            (Mend.PUSH_NOT_FULL,),
        )
    surplus = [
        name
        for name, then, now in (
            (":producer_free", _tokens(before.producer), _tokens(after.producer)),
            (":consumer_free", _tokens(before.consumer), _tokens(after.consumer)),
            (":not_full", before.not_full, after.not_full),
        )
        if then > 1 and now > 1
    ]
    if surplus:
        role = "a client that had been taken for dead came back"
        room = "a client of pressure 0.1, which leaves two, was here, or one died before it trimmed the list"
        yield Finding(
            Trouble.TOO_MANY_TOKENS,
            f"{_listed(surplus)} {'has' if len(surplus) == 1 else 'have'} more than one token",
            f"{room}: the queue may take more than its bound"
            if surplus == [":not_full"]
            else f"{role}: two clients may act in one role at once",
            "leave one",
            (Mend.TRIM,),
        )
    if on_full(before) and on_full(after):
        yield Finding(
            Trouble.NOT_FULL_ON_FULL,
            f"the queue is full ({after.length} of {after.bound}), but there is a :not_full token",
            "a client of pressure 0.1 left one too many, or a native client died: one message more gets in",
            "take the token away",
            (Mend.TAKE_NOT_FULL,),
        )


def _of_statistics(before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    uncounted = after.uncounted
    at_rest = before.roles_are_free and after.roles_are_free
    if uncounted and uncounted == before.uncounted and (at_rest or before.view == after.view):
        yield Finding(
            Trouble.STATISTICS,
            f"produced - consumed is {after.producer.messages - after.consumer.messages}, "
            f"but there {_are(after.length, 'message')}",
            "a native client died before it counted what it had "
            + ("put" if uncounted > 0 else "taken (that message is lost with it)"),
            f"add {abs(uncounted)} to what was {'produced' if uncounted > 0 else 'consumed'}, and the bytes",
            (Mend.SETTLE_STATISTICS,),
        )


def _of_keys_without_a_queue(before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    if not after.keys or before.view != after.view:
        return
    if all(key.startswith(b":ext:") for key in after.keys):
        yield Finding(
            Trouble.LEFT_BEHIND,
            f"the queue does not exist, but keys of this server do: {_suffixes(after.keys)}",
            "a native client deleted it, which does not know of them: they only take up memory",
            "delete them",
            (Mend.UNLINK,),
        )
        return
    if after.keys == (b"",):
        # The last that a Delete comes to. But nothing shows that it was a queue's.
        yield Finding(
            Trouble.LONE_LIST,
            f"there is a list with {_counted(after.length, 'message')}, and nothing else of a queue",
            "a client died at the last step of deleting a queue, or the list is somebody else's",
            "delete it, but only where the queue is named on the command line",
            (Mend.WAKE,),
        )
        return
    lost = f", with {_counted(after.length, 'message')} in it" if after.length else ""
    woken = bool(after.closed and after.not_full and after.producer.free and after.consumer.free)
    yield Finding(
        Trouble.HALF_DELETED,
        f"the queue does not exist{lost}, but keys of it do: {_suffixes(after.keys)}",
        "a client died while it deleted the queue, or waits for a role that a dead one holds: until they are "
        "gone the queue cannot be made anew",
        "delete the rest, as whoever deleted the queue wanted to"
        if woken
        else "give back both roles, so that whoever waits there goes on; then delete what is left",
        (Mend.UNLINK if woken else Mend.WAKE,),
    )


_GIVE_BACK = {"producer": Mend.GIVE_BACK_PRODUCER, "consumer": Mend.GIVE_BACK_CONSUMER}
_UNPARK = {"producer": Mend.UNPARK_PRODUCER, "consumer": Mend.UNPARK_CONSUMER}


def _tokens(role: Role) -> int:
    return role.free + role.parked


def _role(name: str, reply: Sequence[Any]) -> Role:
    free, parked, holder, messages, size, view = reply
    return Role(name, free, parked, holder, _number(messages), _number(size), view)


def _number(text: bytes | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _by(role: Role) -> str:
    return "" if role.holder is None else f" by '{printable(role.holder)}'"


def _suffixes(keys: Sequence[bytes]) -> str:
    return _listed([printable(key) or "the list of messages" for key in keys])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count or 'no'} {what}s"


def _are(count: int, what: str) -> str:
    return f"{'is' if count == 1 else 'are'} {_counted(count, what)}"

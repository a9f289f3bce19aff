"""Which steps are left out: those whose replies the documentation leaves open.

Each reason is a function that returns whether the step is left out for this reason, which it explains.
"""

from collections.abc import Callable
from typing import NamedTuple

from tests.simulate.commands import COMMANDS
from tests.simulate.world import Words, World
from tests.support.reference.queue import OVERWRITE, Queue

# Commands, and an option, whose queues must be in one shard.
_OF_ONE_SHARD = {
    "WATCH", "MULTI", "EXEC", "DISCARD", "LMOVE", "BLMOVE", "RPOPLPUSH", "BRPOPLPUSH", "SMOVE", "DEAD-LETTER",
}  # fmt: skip
_POPS = ("SPOP", "LPOP", "RPOP", "get", "PRESSURE.ACK")


class Sending(NamedTuple):
    """The commands that a client is about to send, the possible worlds, and whether others send, too."""

    commands: list[Words]
    worlds: list[World]
    races: bool
    # Whether clients may wait for each other, and whether the backend is a cluster.
    waits: bool
    is_spread: bool

    @property
    def name(self) -> str:
        """The name of the first command."""
        return str(self.commands[0][0])

    @property
    def others_go_on(self) -> bool:
        """Whether another client sends now, or would send more when its wait ends."""
        return self.races or any(
            client.waiting and client.pending for world in self.worlds for client in world.clients
        )


def _looks_at_several_queues(sending: Sending) -> bool:
    """A command looks at one queue after the other, while others may act in between."""
    return sending.races and any(
        words[0] in COMMANDS and COMMANDS[words[0]].is_choice and len(COMMANDS[words[0]].names(words)) > 1
        for words in sending.commands
    )


def _is_for_several_queues(sending: Sending) -> bool:
    """A pipeline for several queues may be done in another order, which others that act meanwhile can see."""
    known = [words for words in sending.commands if words[0] in COMMANDS]
    names = {name for words in known for name in COMMANDS[words[0]].names(words)}
    is_pipeline = len(known) == len(sending.commands) > 1 and len(names) > 1
    return is_pipeline and (sending.others_go_on or any(world.moves_wait for world in sending.worlds))


def _rings(sending: Sending) -> list[Queue]:
    """Return the queues that the commands name, and that overwrite or have a limit of bytes."""
    known = [words for words in sending.commands if words[0] in COMMANDS]
    names = {name for words in known for name in COMMANDS[words[0]].names(words)}
    some = [
        world.logs.get(name) or world.home.by_name.get(name) for world in sending.worlds for name in names
    ]
    return [one for one in some if one and one.exists and (one.overflow == OVERWRITE or one.max_bytes)]


def _may_become_one_run(sending: Sending) -> bool:
    """A queue that overwrites, or has a limit of bytes, accepts or refuses a run of puts as a whole."""
    makes_one = any("OVERWRITE" in words or "MAX-BYTES" in words for words in sending.commands)
    rows = [COMMANDS[words[0]] for words in sending.commands if words[0] in COMMANDS]
    if not any(row.put or row.moves for row in rows) or not (makes_one or _rings(sending)):
        return False
    has_several = sending.name == "SADD" and len(sending.commands[0]) > 3
    return len(sending.commands) > 1 or sending.races or has_several


def _lowers_the_bound_of_a_ring(sending: Sending) -> bool:
    """The oldest messages are dropped by later puts."""
    return any(
        words[:1] + words[2:3] == ("PRESSURE.ALTER", "BOUND") and 0 < words[3] < ring.length
        for words in sending.commands
        for ring in _rings(sending)
    )


def _is_native_put_into_a_ring(sending: Sending) -> bool:
    """By the specification a native client drops no message of a ring; the library does."""
    return sending.name == "native put" and bool(_rings(sending))


def _crosses_shards(sending: Sending) -> bool:
    """The queues may be in different shards."""
    return sending.is_spread and any(not _OF_ONE_SHARD.isdisjoint(words) for words in sending.commands)


def _may_acknowledge(sending: Sending) -> bool:
    """A pop ends what the client's earlier writes popped. Not all servers know of an end of ACK NEXT."""
    if sending.waits:
        return False  # their tables have neither pipelines of pops nor an end of ACK NEXT
    (world,) = sending.worlds
    keeps = any(world.home.by_name[name].keeps for name in world.names())
    is_pipeline = len(sending.commands) > 1 and ("MULTI",) not in sending.commands
    is_pipeline &= any(words[0] in _POPS for words in sending.commands)
    ends = any(
        words[0] == "PRESSURE.ALTER" and words[-1] == "FINAL" and world.home.is_popped(words[1])
        for words in sending.commands
    )
    return (keeps and is_pipeline) or ends


def _needs_a_role_at_once(sending: Sending) -> bool:
    """A native client gives its role back after others have seen what it did, and one may need it then."""
    return (
        sending.name.startswith("native ")
        and sending.others_go_on
        and any(
            client.waiting and any(str(words[0]).endswith("NOWAIT") for words in client.pending)
            for world in sending.worlds
            for client in world.clients
        )
    )


def _is_native_get_of_jobs(sending: Sending) -> bool:
    """Native clients do not see jobs; and it is open when a server makes jobs of their messages."""
    if not sending.waits or sending.name not in ("native get", "native length"):
        return False
    queues = [world.home.by_name.get(sending.commands[0][1]) for world in sending.worlds]
    return any(queue is not None and (queue.has_jobs or queue.jobs) for queue in queues)


def _is_native_delete_among_others(sending: Sending) -> bool:
    """A native Delete deletes the list last, with messages that were put just before."""
    return sending.name == "native delete" and sending.others_go_on


def _is_native_put_into_a_circle(sending: Sending) -> bool:
    """A client that waits to take may overtake one that waits to move a message to the end of its queue."""
    return sending.name == "native put" and any(
        world.moves_within(sending.commands[0][1]) for world in sending.worlds
    )


_REASONS: tuple[Callable[[Sending], bool], ...] = (
    _looks_at_several_queues,
    _is_for_several_queues,
    _may_become_one_run,
    _lowers_the_bound_of_a_ring,
    _is_native_put_into_a_ring,
    _crosses_shards,
    _may_acknowledge,
    _needs_a_role_at_once,
    _is_native_get_of_jobs,
    _is_native_delete_among_others,
    _is_native_put_into_a_circle,
)


def is_open(sending: Sending) -> bool:
    """Return whether the reference cannot know all results of the commands."""
    return any(reason(sending) for reason in _REASONS)

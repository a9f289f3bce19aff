"""The commands that a step stands for: those that begin with `?` are about jobs and tubes of the moment.

First jobs are `picked`, so that a step is about the same jobs when steps before it are left out. Then the
commands are `spelt` as the client's connection needs them.
"""

from dataclasses import dataclass, field

from tests.simulate.tables import CONSUMERS
from tests.simulate.world import Words, World
from tests.support.reference.jobs import BURIED, DELAYED, READY, RESERVED, Job

_STATES = (READY, DELAYED, RESERVED, BURIED)
_UNKNOWN = 999_999_999
# beanstalk's words for events.
_EVENTS = {"ACK": "delete job", "RELEASE": "release", "BURY": "bury", "TOUCH": "touch"}


class JobId(int):
    """The id of a job. In the steps of a program it counts from the program's first id."""


@dataclass
class Session:
    """What a beanstalk connection uses and watches."""

    used: str = "default"
    watched: list[str] = field(default_factory=lambda: ["default"])

    def use(self, tube: str) -> list[Words]:
        """Return the commands after which this tube is used."""
        if tube == self.used:
            return []
        self.used = tube
        return [("use", tube)]

    def watch(self, tubes: list[str]) -> list[Words]:
        """Return the commands after which exactly these tubes are watched."""
        commands: list[Words] = []
        for tube in tubes:
            if tube not in self.watched:
                self.watched.append(tube)
                commands.append(("watch", tube, len(self.watched)))
        for tube in [one for one in self.watched if one not in tubes]:
            self.watched.remove(tube)
            commands.append(("ignore", tube, len(self.watched)))
        return commands


def picked(words: Words, world: World, number: int, kind: str) -> list[Words]:
    """Return the command with a job of the moment: none if there is no such job. `number` is the client's."""
    is_beanstalk = kind == "beanstalk"
    match words:
        case "?end", place, _, is_owner, *_:
            return _end(_own(world, place, number, is_owner=is_owner), words, is_beanstalk=is_beanstalk)
        case "?ack", place, *token:
            found = _pick(world, place, *_STATES)
            if not found:
                return []
            job = JobId(found[1].id)
            return [("PRESSURE.ACK", found[0], *(job, _UNKNOWN, job)[: 1 + place % 3], *token)]
        case "?change", place, command:
            found = _pick(world, place, *_STATES)
            return [(command, found[0], JobId(found[1].id))] if found else []
        case "?about", place:
            found = _pick(world, place, *_STATES)
            return (
                [("PRESSURE.JOB", found[0], JobId(found[1].id))]
                if found
                else [("PRESSURE.JOB", "q", _UNKNOWN)]
            )
        case "?range", first, last, consumer, event:
            found, other = _pick(world, first, RESERVED), _pick(world, last, RESERVED)
            if not found or not other or found[0] != other[0]:
                return []
            first, last = sorted((JobId(found[1].id), JobId(other[1].id)))
            return [(f"PRESSURE.{event}", found[0], "FROM", first, "TO", last, "TOKEN", consumer)]
    return [words]


def spelt(words: Words, world: World, session: Session) -> list[Words]:
    """Return the commands to send: none if there is no such group."""
    match words:
        case "?put", tube, message, priority, delay, ttr:
            put = ("put", tube, message, "PRIORITY", priority, "DELAY", delay, "TTR", ttr)
            return [*session.use(tube), put]
        case "?reserve", tube:
            return [*session.watch([tube]), ("reserve now", tube)]
        case "?wait", tube:
            return [*session.watch([tube]), ("reserve", tube)]
        case "?wait", *tubes:
            return [*session.watch(tubes), ("reserve any", len(tubes), *tubes)]
        case "?reserve", *tubes:
            return [*session.watch(tubes), ("reserve from", len(tubes), *tubes)]
        case "?used", command, tube, *rest:
            return [*session.use(tube), (command, tube, *rest)]
        case "?once", name, transaction, *messages:
            return [("PRESSURE.TXN", transaction), ("ADD ONCE", name, transaction, *messages)]
        case (("?pop" | "?claim" | "?kick" | "?purge"), group, *rest):
            return _of_group(words[0], world, group, *rest)
    return [words]


def shifted(words: Words, by: int) -> Words:
    """Return the words with ids that are greater by so many."""
    return tuple(JobId(word + by) if isinstance(word, JobId) else word for word in words)


def _pick(world: World, place: int, *states: str) -> tuple[str, Job] | None:
    some = world.jobs(*states)
    return some[place % len(some)] if some else None


def _own(world: World, place: int, number: int, *, is_owner: bool) -> tuple[str, Job, str] | None:
    """Return a reserved job, its queue, and the token with which the client acts as its owner, or not."""
    connections = {client.owner for client in world.clients}
    own = world.clients[number].owner
    some = world.jobs(RESERVED)
    mine = [one for one in some if one[1].owner == own or one[1].owner not in connections]
    some = (mine or some) if is_owner else some
    if not some:
        return None
    name, job = some[place % len(some)]
    if "+" in name and not is_owner:
        return name, job, next(one for one in CONSUMERS if one != job.owner)
    return name, job, job.owner if is_owner and job.owner not in connections else ""


def _end(found: tuple[str, Job, str] | None, words: Words, *, is_beanstalk: bool) -> list[Words]:
    """Delete, release, bury or touch a reserved job."""
    if not found:
        return []
    (_, _, event, _, token, priority, delay), (name, job, owner) = words, found
    if is_beanstalk:
        some = (job.priority if priority is None else priority, delay)
        rest = some if event == "RELEASE" else some[:1] if event == "BURY" else ()
        return [(_EVENTS[event], name, JobId(job.id), *rest)]
    token = owner or token
    words = (f"PRESSURE.{event}", name, JobId(job.id), *(("TOKEN", token) if token else ()))
    if event in ("RELEASE", "BURY") and priority is not None:
        words += ("PRIORITY", priority)
    return [words + (("DELAY", delay) if event == "RELEASE" and delay else ())]


def _of_group(command: str, world: World, group: str, *rest: object) -> list[Words]:
    log = next(iter(world.logs), "")
    if not log or group not in world.logs[log].groups:
        return []
    name = f"{log}+{group}"
    if command == "?pop":
        return [("SPOP", name, *rest)]
    if command == "?claim":
        reserved = world.queue(name).in_state(RESERVED)
        is_lost = any(job.is_in_range and job.offset < world.logs[log].head for job in reserved)
        return [] if is_lost else [("PRESSURE.CLAIM", name, *rest, "COUNT", 1000)]
    return [("PRESSURE.KICK", name, *rest) if command == "?kick" else ("PRESSURE.PURGE", name)]

"""Watchers in memory: which one is told of a change, and in which order."""

from pressure_server.queues.first_jobs import Watcher, Watchers


class World:
    """Watchers with numbers, which note the order in which they are woken up."""

    def __init__(self, *queues: str) -> None:
        self.woken: list[int] = []
        self.watchers = Watchers()
        self.each = [self._watcher(number, names) for number, names in enumerate(queues)]
        for watcher in self.each:
            self.watchers.add(watcher)

    def _watcher(self, number: int, names: str) -> Watcher:
        return Watcher([name.encode() for name in names], lambda: self.woken.append(number))


def test_changes_are_told_to_one_each_first_come_first_served() -> None:
    world = World("ab", "bc", "abc")
    for name in (b"b", b"b", b"a"):
        world.watchers.tell(name)
    assert world.woken == [0, 1, 2]


def test_those_who_have_been_told_are_told_again_only_if_no_other_waits() -> None:
    world = World("ab", "ab")
    for name in (b"a", b"b", b"a"):
        world.watchers.tell(name)
    assert world.woken == [0, 1, 0]
    assert [watcher.news for watcher in world.each] == [{b"a"}, {b"b"}]


def test_a_change_for_which_nobody_waits_is_for_nobody() -> None:
    world = World("ab", "b")
    world.watchers.remove(world.each[0])
    world.watchers.tell(b"a")
    assert world.woken == []


def test_all_are_woken_up_when_nothing_is_known_any_longer() -> None:
    world = World("ab", "b")
    world.watchers.tell_all()
    assert world.woken == [0, 1]
    assert not world.each[0].news


def test_waiting_commands_are_counted_by_queue() -> None:
    world = World("ab", "b")
    assert world.watchers.count(None) == {b"a": 1, b"b": 2}
    assert world.watchers.count([b"b", b"c"]) == {b"b": 2}

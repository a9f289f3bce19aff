"""Places: who loses one when all are taken."""

import asyncio

import pytest

from pressure_server.web.places import Owner, Places

ADA, BOB = (Owner(is_user=True, name=name) for name in ("ada", "bob"))
HERE, THERE = (Owner(is_user=False, name=name) for name in ("127.0.0.1", "10.0.0.1"))


def fill(places: Places, *owners: Owner) -> list[asyncio.Transport]:
    """Take a place for each owner in this order. None loses one."""
    holders = [asyncio.Transport() for _ in owners]
    for holder, owner in zip(holders, owners, strict=True):
        assert places.take(holder, owner) is None
    return holders


@pytest.mark.parametrize(
    ("taken", "loser"),
    [
        ((HERE, HERE, HERE, HERE), 0),
        ((THERE, HERE, HERE, HERE), 1),
        ((HERE, THERE, HERE, THERE), 0),
        ((ADA, ADA, ADA, HERE), 0),  # strangers keep their two places
        ((ADA, BOB, BOB, HERE), 1),
        ((ADA, ADA, HERE, HERE), 2),
        ((ADA, ADA, HERE, THERE), 2),
        ((ADA, BOB, ADA, BOB), 0),
    ],
)
@pytest.mark.parametrize("newcomer", [HERE, THERE, ADA, BOB])
def test_the_greediest_loses_its_oldest_place(taken: tuple[Owner, ...], loser: int, newcomer: Owner) -> None:
    places = Places(4, reserved=2)
    holders = fill(places, *taken)
    assert places.take(asyncio.Transport(), newcomer) is holders[loser]


def test_a_holder_that_takes_a_place_again_is_the_newest_and_nobody_loses_one() -> None:
    places = Places(2)
    first, second = fill(places, HERE, HERE)
    assert places.take(first, HERE) is None
    assert places.take(asyncio.Transport(), HERE) is second


def test_a_holder_that_logs_in_counts_as_its_user() -> None:
    places = Places(3)
    one, other, _ = fill(places, HERE, HERE, THERE)
    assert places.take(one, ADA) is None
    assert places.take(other, ADA) is None
    assert places.take(third := asyncio.Transport(), THERE) is not one
    assert places.take(third, ADA) is None
    assert places.take(asyncio.Transport(), HERE) is one


@pytest.mark.parametrize("owner", [ADA, HERE])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_few_places_are_not_all_reserved(most: int, owner: Owner) -> None:
    places = Places(most, reserved=32)
    holders = fill(places, *[owner] * most)
    assert places.take(asyncio.Transport(), owner) is holders[0]


@pytest.mark.parametrize(
    ("taken", "due"),
    [
        ((ADA, ADA, ADA, ADA), {BOB, HERE}),
        ((ADA, ADA, ADA, BOB), {BOB, HERE}),
        ((ADA, ADA, BOB, BOB), {HERE}),
        ((ADA, ADA, BOB), {ADA, BOB, HERE}),
        ((HERE, HERE, ADA, ADA), {BOB}),
    ],
)
def test_a_place_is_due_to_owners_that_have_fewer_than_another(taken: list[Owner], due: set[Owner]) -> None:
    places = Places(4)
    (first, *_) = fill(places, *taken)
    assert {owner for owner in (ADA, BOB, HERE) if places.is_due(owner)} == due
    for _ in range(2):
        places.leave(first)
    assert {owner for owner in (ADA, BOB, HERE) if places.is_due(owner)} == {ADA, BOB, HERE}
    fill(places, THERE)

"""The route to the master that Sentinels name: stale answers, silence, refusals."""

import logging
from typing import Any

import pytest
import redis

from pressure_server.backend.address import Address, SentinelAddress
from pressure_server.backend.route import SentinelRoute
from pressure_server.errors import BackendError, BackendRefusedError

OLD, NEW = Address("redis://old:1/"), Address("redis://new:1/")
AWAY = redis.ConnectionError("Connection refused")
NO_PASSWORD = redis.AuthenticationError("Authentication required.")
UNKNOWN_NAME = redis.ResponseError("No such master with that name")


def names(master: Address, epoch: int) -> dict[str, Any]:
    """Return the reply of a Sentinel to SENTINEL MASTER."""
    return {"ip": master.host, "port": 1, "config-epoch": epoch}


class FakeSentinel:
    """A Sentinel with one answer: a reply, or an error that redis-py raises."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | Exception = AWAY

    async def sentinel_master(self, _name: str) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Sentinels:
    """A route and the two Sentinels that it asks."""

    def __init__(self) -> None:
        self.route = SentinelRoute(SentinelAddress("redis+sentinel://one,two/mymaster"))
        self._fakes = FakeSentinel(), FakeSentinel()
        self.route._sentinels = list(self._fakes)

    async def find(self, *answers: dict[str, Any] | Exception) -> Address:
        """Return what the route finds if the Sentinels give these answers."""
        for fake, answer in zip(self._fakes, answers, strict=True):
            fake.answer = answer
        return await self.route.find()


async def test_the_master_with_the_newest_epoch_is_used() -> None:
    """A stale Sentinel does not lead back to the old master."""
    sentinels = Sentinels()
    assert await sentinels.find(names(OLD, 4), names(NEW, 5)) == NEW
    assert await sentinels.find(names(OLD, 4), AWAY) == NEW


async def test_sentinels_that_were_set_up_again_are_believed() -> None:
    """SENTINEL REMOVE and MONITOR begin with epoch 0. All answer, so none is left that knows a newer one."""
    sentinels = Sentinels()
    assert await sentinels.find(names(OLD, 4), names(OLD, 4)) == OLD
    assert await sentinels.find(names(NEW, 0), names(NEW, 0)) == NEW
    assert await sentinels.find(names(NEW, 0), AWAY) == NEW


def test_former_masters_are_not_tried() -> None:
    route = Sentinels().route
    route.move(OLD)
    route.move(NEW)
    assert route.nodes == [NEW]


async def test_silence_of_all_sentinels_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sentinels = Sentinels()
    await sentinels.find(names(OLD, 4), AWAY)
    for _ in range(3):
        assert await sentinels.find(AWAY, AWAY) == OLD
    await sentinels.find(AWAY, names(OLD, 4))
    about = "redis+sentinel://one,two/mymaster"
    assert caplog.messages == [
        f"no Sentinel of {about} names the master (Connection refused): the last one is used",
        f"the Sentinels of {about} name the master again",
    ]


@pytest.mark.parametrize("answers", [(AWAY, AWAY), (NO_PASSWORD, AWAY), (AWAY, UNKNOWN_NAME)])
async def test_sentinels_that_are_away_at_the_start_may_come(
    answers: tuple[Exception, Exception], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BackendError, match="names the master") as away:
        await Sentinels().find(*answers)
    assert not isinstance(away.value, BackendRefusedError)
    reason = next((answer for answer in answers if answer is not AWAY), AWAY)
    assert str(away.value).endswith(f": {reason}")
    assert not caplog.messages, "the link logs the error"


@pytest.mark.parametrize("answer", [NO_PASSWORD, UNKNOWN_NAME])
async def test_sentinels_that_all_refuse_end_the_start(answer: Exception) -> None:
    with pytest.raises(BackendRefusedError) as refused:
        await Sentinels().find(answer, answer)
    assert f"names the master: {answer}" in str(refused.value)
    assert "check the master's name, sentinel_username and sentinel_password" in str(refused.value)

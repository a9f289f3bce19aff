"""The text of all metrics: made in pieces, so that clients are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from pressure_server.auth.users import User
from pressure_server.web.metrics.commands import command_metrics
from pressure_server.web.metrics.queues import ShownQueues, queue_metrics, total_metrics
from pressure_server.web.metrics.server import backend_metrics, build_metrics, call_metrics, client_metrics
from pressure_server.web.shown import USER, Shown


class _One(Collector):
    """A collector of one family that exists already."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the family."""
        return [self._family]


class Metrics:
    """The endpoint /metrics."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        settings = shown.settings
        self._queues = ShownQueues(shown.survey, settings.metrics_queues, settings.metrics_match)
        self._process = ProcessCollector(registry=None)
        self._is_busy = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus's text format."""
        async with self._is_busy:
            pieces: list[bytes] = []
            for family in chain(await backend_metrics(self._shown), self._families(request[USER])):
                pieces.append(_text_of(family))
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _families(self, user: User) -> Iterator[Metric]:
        shown = self._shown
        yield from build_metrics(shown)
        yield from total_metrics(shown.survey)
        yield from queue_metrics(shown, self._queues.current(), user)
        yield from command_metrics()
        yield from client_metrics(shown)
        yield from call_metrics(shown)
        yield from self._process.collect()


def _text_of(family: Metric) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_One(family))
    return generate_latest(registry)

"""The endpoint /metrics: its text is made in pieces, so that clients are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

from pressure_server.web import server_metrics
from pressure_server.web.http_requests import USER, HttpContext
from pressure_server.web.queue_metrics import MeasuredQueues, queue_metrics, total_metrics


class Metrics:
    """The endpoint /metrics."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        settings = context.settings
        self._queues = MeasuredQueues(context.survey, settings.metrics_queues, settings.metrics_match)
        self._process = ProcessCollector(registry=None)
        self._is_busy = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus's text format."""
        context, workers = self._context, self._context.server.workers
        async with self._is_busy:
            families = chain(
                await server_metrics.backend_metrics(context),
                server_metrics.build_metrics(await context.not_ready_for_more()),
                total_metrics(context.survey),
                queue_metrics(context.survey, self._queues.current(), request[USER], await context.waiting()),
                server_metrics.command_metrics(await workers.statistics()),
                server_metrics.client_metrics(await workers.totals()),
                server_metrics.call_metrics(context.server.broker, await workers.calls()),
                self._process.collect(),
            )
            pieces: list[bytes] = []
            for family in families:
                pieces.append(generate_latest(_One(family)))
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _One(NamedTuple):
    """A collector of one family."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        """Return the family."""
        return [self.family]

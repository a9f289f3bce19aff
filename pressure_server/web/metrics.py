"""The endpoint /metrics: its text is made in pieces, so that clients are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector
from prometheus_client.metrics_core import Metric

from pressure_server.auth.users import User
from pressure_server.web.http_requests import USER, HttpContext
from pressure_server.web.metric_families import text_of
from pressure_server.web.queue_metrics import MeasuredQueues, queue_metrics, total_metrics
from pressure_server.web.server_metrics import (
    backend_metrics,
    build_metrics,
    call_metrics,
    client_metrics,
    command_metrics,
)


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
        async with self._is_busy:
            pieces: list[bytes] = []
            for family in chain(await backend_metrics(self._context), await self._families(request[USER])):
                pieces.append(text_of(family))
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _families(self, user: User) -> Iterator[Metric]:
        context, workers = self._context, self._context.server.workers
        return chain(
            build_metrics(await context.not_ready_for_more()),
            total_metrics(context.survey),
            queue_metrics(context, self._queues.current(), user, await context.waiting()),
            command_metrics(await workers.statistics()),
            client_metrics(await workers.totals()),
            call_metrics(context, await workers.calls()),
            self._process.collect(),
        )

"""Families of metrics: made of rows, which are label values and a number, and written as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Row = tuple[Sequence[str], float]


class _One(Collector):
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """Return the family."""
        return [self._family]


def text_of(family: Metric) -> bytes:
    """Return a family in Prometheus's text format."""
    return generate_latest(_One(family))


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a gauge with a sample for each row."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a counter with a sample for each row; the samples get the suffix _total."""
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family

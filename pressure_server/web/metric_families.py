"""Families of metrics, named `pressure_…`. A row has the values of the labels, and a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Row = tuple[Sequence[str], float]


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return gauges(name, text, (), [((), value)])


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a gauge with a sample for each row."""
    return _filled(GaugeMetricFamily(f"pressure_{name}", text, labels=labels), rows)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; its sample gets the suffix _total."""
    return counters(name, text, (), [((), value)])


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a counter with a sample for each row; the samples get the suffix _total."""
    return _filled(CounterMetricFamily(f"pressure_{name}", text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family

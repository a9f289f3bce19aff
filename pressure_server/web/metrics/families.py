"""Families of metrics, made of rows: a name, a help text, label names, and a value for each set of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Row = tuple[Sequence[str], float]


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter without labels; its samples get the suffix _total."""
    return CounterMetricFamily(name, text, value=value)


def gauges(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a gauge with a sample for each row."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def counters(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """Return a counter with a sample for each row."""
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family

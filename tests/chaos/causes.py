"""Causes: which fault a duplicate comes from, by who has received it, through what, and when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.chaos.plan import Kind, Target
from tests.support.ledger import Doubled

# Seconds after which a delivery has been acknowledged, where the backend can be reached; and for which a
# broken process has an effect after it has been mended.
_LATE = 2.0


class Incident(NamedTuple):
    """A fault that was done: to which proxy (none where it was the backend), from when to when."""

    kind: Kind
    proxy: str
    began: float
    ended: float


def cause(duplicate: Doubled, incidents: Sequence[Incident], proxy_timeout: float) -> Incident | None:
    """The broken process that explains it; None where there is none.

    A proxy that dies, or that is taken for dead, has delivered what goes back: shortly before, unless it
    could not say so to the backend then. Or it delivers, when it goes on, what others have meanwhile.
    """
    first, last = duplicate.receipts[0], duplicate.receipts[-1]
    proxies = {receipt.proxy for receipt in duplicate.receipts}
    found = [
        incident
        for incident in incidents
        if incident.kind.breaks_a_process
        and (not incident.proxy or incident.proxy in proxies)
        and _earliest(incident, incidents) <= first.when
        and first.when <= incident.ended + _LATE + 2 * proxy_timeout
        and incident.began <= last.when
    ]
    # A proxy rather than the backend, the latest before the second receipt.
    return max(
        found, key=lambda incident: (incident.kind.target is Target.PROXY, incident.began), default=None
    )


def _earliest(incident: Incident, incidents: Sequence[Incident]) -> float:
    """Since when the proxy may not have been able to acknowledge what it delivered."""
    earliest = incident.began - _LATE
    for other in sorted(incidents, key=lambda other: -other.ended):
        is_in_the_way = other.kind.target is not Target.CLIENT_LINE and (
            not other.proxy or not incident.proxy or other.proxy == incident.proxy
        )
        if is_in_the_way and other.began < earliest <= other.ended + _LATE:
            earliest = other.began - _LATE
    return earliest


def at_the_time(
    began: float, ended: float, incidents: Sequence[Incident], around: float = _LATE
) -> list[Incident]:
    """What was broken between, or up to `around` seconds before or behind."""
    return [
        incident
        for incident in incidents
        if incident.began <= ended + around and incident.ended >= began - around
    ]

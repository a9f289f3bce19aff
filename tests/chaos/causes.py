"""Causes: finds the fault that explains a duplicate, from its receipts and the faults of the run."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from tests.chaos.plan import LOSSY, MASTER_CUT, PARTITION, Kind, Target
from tests.support.ledger import Doubled, Event

# Seconds within which a delivery is acknowledged if the backend can be reached, and for which a repaired
# process still has an effect.
_DELAY = 2.0
# They last long enough for the heartbeats of any proxy to be missed, and a failover may undo them.
_SILENCING = (PARTITION, LOSSY, MASTER_CUT)


class Incident(NamedTuple):
    """A fault that was done, from `began` to `ended`. `proxy` is "" if the target was the backend."""

    kind: Kind
    proxy: str
    began: float
    ended: float


def cause(
    duplicate: Doubled, incidents: Sequence[Incident], proxy_timeout: float, may_lose: float = 0.0
) -> Incident | None:
    """Return the broken process that explains the duplicate, or None.

    If a proxy dies or is taken for dead, the messages that it delivered and did not acknowledge are put back.
    A proxy that was taken for dead may also go on and deliver messages that others have delivered meanwhile.
    A power cut may lose the acknowledgements of the `may_lose` seconds before it.
    """
    first, last = duplicate.receipts[0], duplicate.receipts[-1]
    proxies = {receipt.proxy for receipt in duplicate.receipts}
    candidates = [
        incident
        for incident in incidents
        if incident.kind.breaks_a_process
        and (not incident.proxy or incident.proxy in proxies)
        and _earliest_delivery(incident, incidents) - may_lose <= first.when
        and first.when <= incident.ended + _DELAY + 2 * proxy_timeout
        and incident.began <= last.when
    ]
    # A proxy rather than the backend, then the latest.
    return max(candidates, key=lambda found: (found.kind.target is Target.PROXY, found.began), default=None)


def seconds_before_cut(sent: float, acknowledged: float, cuts: Sequence[float]) -> float:
    """Return how long before the next power cut a message was acknowledged; inf if none followed.

    0 if the cut was in between: a client reads all replies to what it has sent in one write, and the first
    may have come before the cut.
    """
    return min((max(0.0, cut - acknowledged) for cut in cuts if cut >= sent), default=inf)


def cause_of_refusal(reserved: Event, refused: Event, incidents: Sequence[Incident]) -> Incident | None:
    """Return the broken proxy or network that explains why a client's reservation has ended, or None.

    If a proxy dies or is taken for dead, the reservations of its clients end.
    """
    for incident in incidents:
        is_between = incident.began <= refused.when and reserved.when <= incident.ended + _DELAY
        breaks_proxy = incident.kind.breaks_a_process and incident.proxy == reserved.proxy
        if is_between and (breaks_proxy or incident.kind in _SILENCING):
            return incident
    return None


def _earliest_delivery(incident: Incident, incidents: Sequence[Incident]) -> float:
    """Return the time from which deliveries may not have been acknowledged when the incident began."""
    earliest = incident.began - _DELAY
    for other in sorted(incidents, key=lambda other: -other.ended):
        delays_acknowledgements = other.kind.target is not Target.CLIENT_LINE and (
            not other.proxy or not incident.proxy or other.proxy == incident.proxy
        )
        if delays_acknowledgements and other.began < earliest <= other.ended + _DELAY:
            earliest = other.began - _DELAY
    return earliest


def near(began: float, ended: float, incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents between two times, or shortly before or after."""
    return [
        incident
        for incident in incidents
        if incident.began <= ended + _DELAY and incident.ended >= began - _DELAY
    ]

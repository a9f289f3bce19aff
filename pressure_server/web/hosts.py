"""Host names under which a server without passwords may be called. Pure.

A web page of an attacker can give its own name the address of this server (DNS rebinding). A browser then
lets that page send requests here, but with the attacker's name. So only names are accepted that no stranger
can own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

# Names with these ends are resolved inside one machine or network only.
_LOCAL_ENDS = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")


_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::\d{1,5})?")


def is_own_host(header: str, own: Sequence[str]) -> bool:
    """Return whether a Host header names an address, a local name, or one of our `own` names."""
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = (found["ipv6"] or found["name"]).lower().rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        is_local = "." not in name or name.endswith(_LOCAL_ENDS) or name in own
        return found["name"] is not None and is_local
    return True

"""Host names under which a server without passwords may be called. Pure.

A web page of an attacker can give its own name the address of this server (DNS rebinding). A browser then
lets that page send requests here, but with the attacker's name. So only names are accepted that no stranger
can own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

# Names with these ends are resolved inside one machine or network only.
_LOCAL_ENDS = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")


def is_own_host(header: str, own: Sequence[str]) -> bool:
    """Return whether a Host header names an address, a local name, or one of our `own` names."""
    try:
        parts = urlsplit(f"//{header}")
        name = (parts.hostname or "").rstrip(".")
        if parts.username is not None or parts.path or parts.query or parts.fragment or not name:
            return False
        ipaddress.ip_address(name)
    except ValueError:
        return bool(header) and _is_local_name(header, own)
    return True


def _is_local_name(header: str, own: Sequence[str]) -> bool:
    name = header.rpartition(":")[0] if ":" in header else header
    name = name.lower().rstrip(".")
    is_word = bool(name) and all(c.isascii() and (c.isalnum() or c in "-_.") for c in name)
    return is_word and ("." not in name or name.endswith(_LOCAL_ENDS) or name in own)

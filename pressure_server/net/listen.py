"""Listener URLs: the address of a listener, its handler and its options."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

# Aliases that are familiar to Redis users.
_OTHER_SCHEMES = {"redis": "resp", "rediss": "resps"}
# Beanstalk clients are often configured without a port.
_DEFAULT_PORTS = {"beanstalk": 11300}


class SettingsError(ValueError):
    """An invalid value of a setting; the text names the setting."""


@dataclass(frozen=True)
class ListenerUrl:
    """A listener's URL in parts: `HANDLER://HOST:PORT` or `HANDLER+unix:///PATH`.

    An "s" after the handler's name (`resps://…`) means TLS. `options` (`?NAME=VALUE&…` at the end) are for
    the handler. `redis` is an alias for `resp`.
    """

    handler: str
    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        scheme = self.handler + "s" * self.tls
        options = f"?{urlencode(self.options)}" if self.options else ""
        if self.path:
            return f"{scheme}+unix://{self.path}{options}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{options}"

    @classmethod
    def parse(cls, url: str) -> ListenerUrl:
        """Parse a URL. Raise SettingsError if it is invalid."""
        form = f"invalid listener URL '{url}': write HANDLER://HOST:PORT or HANDLER+unix:///PATH"
        if url and "://" not in url:
            likely = f"resp+unix://{url}" if url.startswith("/") else f"resp://{url}"
            raise SettingsError(f"listener URL '{url}' has no handler: did you mean {likely}?")
        try:
            url.encode()
            parts = urlsplit(url)
            port = parts.port
            # The resolver encodes the name in the same way later, and would fail then.
            (parts.hostname or "").encode("idna")
            options = tuple(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise SettingsError(f"{form} ({error})") from error
        scheme, _, transport = parts.scheme.partition("+")
        scheme = _OTHER_SCHEMES.get(scheme, scheme)
        handler, tls = scheme.removesuffix("s"), scheme.endswith("s")
        port = _DEFAULT_PORTS.get(handler) if port is None else port
        if transport == "unix" and parts.path.startswith("/") and not parts.netloc:
            return cls(handler, path=parts.path, tls=tls, options=options)
        if not handler or transport or parts.hostname is None or port is None or parts.path.strip("/"):
            raise SettingsError(form)
        return cls(handler, host=parts.hostname, port=port, tls=tls, options=options)

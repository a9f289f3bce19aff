"""Where to listen: the URLs of listeners."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

# Redis users know these names.
_OTHER_SCHEMES = {"redis": "resp", "rediss": "resps"}


class SettingsError(ValueError):
    """A value that cannot work; the text names the setting."""


@dataclass(frozen=True)
class Listen:
    """Where to listen and by which handler: `HANDLER://HOST:PORT` or `HANDLER+unix:///PATH`.

    `redis` is another name for `resp`.

    An "s" after the handler's name (`resps://…`) means TLS. `options` (`?NAME=VALUE&…` at the end) are
    for the handler.
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
    def parse(cls, url: str) -> Listen:
        """Raises SettingsError."""
        form = f"'{url}' cannot be listened on: write HANDLER://HOST:PORT or HANDLER+unix:///PATH"
        if url and "://" not in url:
            likely = f"resp+unix://{url}" if url.startswith("/") else f"resp://{url}"
            raise SettingsError(f"'{url}' names no handler: did you mean {likely}?")
        try:
            url.encode()
            parts = urlsplit(url)
            port = parts.port
            # As the system's resolver will have it.
            (parts.hostname or "").encode("idna")
            options = tuple(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError as error:
            raise SettingsError(f"{form} ({error})") from error
        scheme, _, transport = parts.scheme.partition("+")
        scheme = _OTHER_SCHEMES.get(scheme, scheme)
        handler, tls = scheme.removesuffix("s"), scheme.endswith("s")
        if transport == "unix" and parts.path.startswith("/") and not parts.netloc:
            return cls(handler, path=parts.path, tls=tls, options=options)
        if not handler or transport or parts.hostname is None or port is None or parts.path.strip("/"):
            raise SettingsError(form)
        return cls(handler, host=parts.hostname, port=port, tls=tls, options=options)

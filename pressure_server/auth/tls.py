"""TLS for listeners: certificate, key and client CA as files, and the context that they make."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path


class TlsError(ValueError):
    """The files cannot be used; the text names them and says why."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. `key` may be in the certificate's file; with `client_ca` clients need certificates."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """What the files say now, for connections that begin now. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        about = f"--tls-certificate {self.certificate}" + (f", --tls-key {self.key}" if self.key else "")
        try:
            # Without a password openssl would ask the terminal for one.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            if self.client_ca is not None:
                about = f"--tls-client-ca {self.client_ca}"
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise TlsError(self._missing() or f"{about}: {error.reason or error}") from error
        except OSError as error:
            raise TlsError(f"{about}: {error.strerror}") from error
        return context

    def _missing(self) -> str:
        """Return which file does not hold what it is to hold; empty if each does, or cannot be read."""
        key = self.key or self.certificate
        key_option = "--tls-key" if self.key else "--tls-certificate"
        for option, path, what in (
            ("--tls-certificate", self.certificate, "CERTIFICATE"),
            (key_option, key, "PRIVATE KEY"),
            ("--tls-client-ca", self.client_ca, "CERTIFICATE"),
        ):
            text = _text_of(path) if path is not None else None
            if text is not None and not re.search(rf"^-----BEGIN [A-Z0-9 ]*{what}-----", text, re.MULTILINE):
                return f"{option} {path} holds no {what.lower()} in PEM format"
        return ""


def _text_of(path: Path) -> str | None:
    """Return what is in the file; None if it cannot be read again, like a pipe."""
    try:
        return path.read_text(encoding="latin-1") if path.is_file() else None
    except OSError:
        return None

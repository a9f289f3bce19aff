"""TLS for listeners: the files with certificate, key and client CA, and the SSL context made from them."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path


class TlsError(ValueError):
    """A TLS file cannot be used; the text names the file and the reason."""


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of TLS listeners.

    Without `key`, the certificate's file must contain the private key. With `client_ca`, clients must present
    a certificate.
    """

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files and return the context for new connections. Raise TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        about = f"--tls-certificate {self.certificate}" + (f", --tls-key {self.key}" if self.key else "")
        try:
            # Without a password callback, OpenSSL would prompt on the terminal.
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
        """Return an error text for the first file that lacks its PEM object; empty if none does."""
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
    """Return the file's text; None if the file cannot be read a second time, such as a pipe."""
    try:
        return path.read_text(encoding="latin-1") if path.is_file() else None
    except OSError:
        return None

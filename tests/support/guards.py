"""Access control for tests: users files, certificates made by openssl, and reloads."""

from __future__ import annotations

import hashlib
import os
import signal
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from pressure_server.app import cli, logs
from pressure_server.app.settings import Settings
from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.requirements import need


def users_toml(users: Mapping[str, tuple[str, list[str], list[str]]]) -> str:
    """Return a users file. Each user has a password ("" for none), queues and rights."""
    tables = []
    for name, (password, queues, rights) in users.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        login = f'password-sha256 = "{digest}"' if password else "nopass = true"
        tables.append(f'[users."{name}"]\n{login}\nqueues = {queues}\nmay = {rights}\n')
    return "\n".join(tables)


def settings_of(*arguments: str, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that `pressure-server serve` would use, without serving."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PRESSURE_")}
    with (
        mock.patch.object(cli, "serve", mock.Mock(return_value=None)) as serve,
        mock.patch.object(cli, "uvloop"),
        mock.patch.object(logs, "configure"),
        mock.patch.dict(os.environ, {**variables, **(environment or {})}, clear=True),
    ):
        cli.serve_command.main(list(arguments), standalone_mode=False)
    settings = serve.call_args[0][0]
    assert isinstance(settings, Settings)
    return settings


def reload(server: Server, word: str = "reloaded:") -> None:
    """Send SIGHUP, and wait until the log has the word once more."""
    before = server.log.count(word)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.count(word) == before + 1, f"the log to say {word}")


class Authority:
    """A certificate authority, whose files are in one folder."""

    def __init__(self, folder: Path) -> None:
        self._openssl = need("openssl", "openssl")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "ca.pem"
        self._run(
            "req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-days", "30",
            "-subj", f"/CN=CA in {folder.name}",
        )  # fmt: skip

    def issue(self, name: str, *, days: int = 30) -> tuple[Path, Path]:
        """Issue a certificate for localhost, expired if `days` is 0. Return the files of it and its key."""
        self._run("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        self._run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", str(days or -1), "-extfile", "names",
        )  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def client_context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a context for clients that trust this CA, and present the certificate if one is given."""
        context = ssl.create_default_context(cafile=self.certificate)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def _new_key(self, name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        return [*curve, "-nodes", "-keyout", f"{name}.key"]

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            [self._openssl, *arguments], cwd=self.folder, capture_output=True, timeout=TIMEOUT, check=True
        )

"""Access to servers: users files, certificates made by openssl, and reloads of both."""

import os
import signal
import ssl
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from unittest import mock

from pressure_server.app import cli, log_output
from pressure_server.app.settings import Settings
from tests.support.programs import TIMEOUT, Server, wait_for
from tests.support.requirements import need


def users_toml(users: Mapping[str, tuple[str, list[str], list[str]]]) -> str:
    """Return a users file. `users` has by name the password ("" for none), the queues and the rights."""
    return "\n".join(
        f'[users."{name}"]\n'
        + (f'password-sha256 = "{sha256(password.encode()).hexdigest()}"' if password else "nopass = true")
        + f"\nqueues = {queues}\nmay = {rights}\n"
        for name, (password, queues, rights) in users.items()
    )


def settings_of(*arguments: str, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that `pressure-server serve` would use, without serving."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PRESSURE_")}
    with (
        mock.patch.object(cli, "serve", mock.Mock(return_value=None)) as serve,
        mock.patch.object(cli, "uvloop"),
        mock.patch.object(log_output, "configure"),
        mock.patch.dict(os.environ, {**variables, **(environment or {})}, clear=True),
    ):
        cli.serve_command.main(list(arguments), standalone_mode=False)
    settings = serve.call_args[0][0]
    assert isinstance(settings, Settings)
    return settings


def reload(server: Server, logged: str = "reloaded:") -> None:
    """Send SIGHUP, and wait until the log has one more such text."""
    before = server.log.count(logged)
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.count(logged) == before + 1, f"the log to have '{logged}'")


class Authority:
    """A certificate authority. Its folder has its certificate, and those that it issues."""

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
        """Issue a certificate for localhost; with `days=0` an expired one. Return it and its key."""
        self._run("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        self._run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", str(days or -1), "-extfile", "names",
        )  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def client_context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return the context of clients that trust this authority, and have that certificate and key."""
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

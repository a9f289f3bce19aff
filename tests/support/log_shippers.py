"""rsyslog and syslog-ng as private processes, with the configuration that docs/guides/log-shippers.md has."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import BackgroundProgram
from tests.support.requirements import require

PASSWORD = "s3cret"
# In the users file of the guide, this user may create queues.
OPERATOR = {"username": "operator", "password": PASSWORD}
# Where .ci/run unpacks the packages of both, because Debian lets only one of them be installed.
UNPACKED = Path("/opt/log-shippers")
_GUIDE = ROOT / "docs/guides/log-shippers.md"


class Shipper(BackgroundProgram):
    """A log shipper that listens on a TCP port of 127.0.0.1 for lines in the format of syslog."""

    def __init__(
        self, folder: Path, command: list[str], port: int, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder / "output", *command, environment=environment, folder=folder)
        try:
            self._connection = self.connected(port)
        except BaseException as error:
            error.add_note(self.output)
            super().kill()
            raise

    def send(self, lines: Iterable[str]) -> None:
        """Log lines, as an application does."""
        for line in lines:
            self._connection.sendall(f"<13>Nov 26 10:00:00 web-1 shop: {line}\n".encode())

    def kill(self) -> None:
        self._connection.close()
        super().kill()


# Starts a shipper in that folder, which ships into the queue `logs` of the server on that port.
StartShipper = Callable[[Path, int], Shipper]


def access(folder: Path) -> list[str]:
    """Return the options of a server that has the users of the guide. All passwords are PASSWORD."""
    users = folder / "users.toml"
    hashed = hashlib.sha256(PASSWORD.encode()).hexdigest()
    users.write_text(guide_block("toml\n[users.default]").replace("…", hashed))
    return ["--users", str(users)]


def guide_block(beginning: str) -> str:
    """Return the code of the guide's only block that begins so, after the three backquotes."""
    blocks = re.findall(r"^```(.*?)^```$", _GUIDE.read_text("utf-8"), re.M | re.S)
    (found,) = [block for block in blocks if block.startswith(beginning)]
    return str(found).partition("\n")[2]


def guide_block_for(port: int, beginning: str) -> str:
    """Return such a block, for a server on that port of 127.0.0.1."""
    code = guide_block(beginning)
    assert code.count("queue.internal") == 1
    assert code.count("4000") == 1
    return code.replace("queue.internal", "127.0.0.1").replace("4000", str(port))


def _prepared(folder: Path, package: str, *files: str) -> tuple[Path, int]:
    """Make the folder. Return the root of a package's files, where CI unpacks it or `/`, and a free port."""
    roots = [root for root in (UNPACKED, Path("/")) if all((root / file).exists() for file in files)]
    require(roots, f"the Debian package {package}, in {UNPACKED} or installed")
    folder.mkdir(exist_ok=True)
    return roots[0], free_ports(1)[0]


def start_rsyslog(folder: Path, port: int, *, login: str = "") -> Shipper:
    """Start rsyslog; `login` are more parameters of its action."""
    modules = "usr/lib/x86_64-linux-gnu/rsyslog"
    root, input_port = _prepared(folder, "rsyslog-hiredis", "usr/sbin/rsyslogd", f"{modules}/omhiredis.so")
    file = folder / "rsyslog.conf"
    file.write_text(
        f'global(workDirectory="{folder}")\n'
        'module(load="imptcp")\n'
        f'input(type="imptcp" address="127.0.0.1" port="{input_port}")\n'
        + guide_block_for(port, '\nmodule(load="omhiredis")').replace(" serverport=", f" {login} serverport=")
    )
    command = [str(root / "usr/sbin/rsyslogd"), "-n", "-f", str(file), "-iNONE", "-M", str(root / modules)]
    return Shipper(folder, command, input_port)


def start_syslog_ng(folder: Path, port: int, *, login: str = "") -> Shipper:
    """Start syslog-ng; `login` are more options of its destination."""
    modules = "usr/lib/syslog-ng/3.38"
    root, input_port = _prepared(
        folder, "syslog-ng-mod-redis", "usr/sbin/syslog-ng", f"{modules}/libredis.so"
    )
    config = guide_block_for(port, "\ndestination d_queue")
    assert config.count("/var/lib/syslog-ng") == 1
    file = folder / "syslog-ng.conf"
    file.write_text(
        "@version: 3.38\n"
        f'source s_src {{ network(ip("127.0.0.1") port({input_port}) transport("tcp")); }};\n'
        + config.replace("/var/lib/syslog-ng", str(folder)).replace(" port(", f" {login} port(")
    )
    command = [
        str(root / "usr/sbin/syslog-ng"), "--foreground", "--stderr", "--no-caps", "--cfgfile", str(file),
        "--module-path", str(root / modules), "--persist-file", str(folder / "persist"),
        "--pidfile", str(folder / "pid"), "--control", str(folder / "control"),
    ]  # fmt: skip
    return Shipper(folder, command, input_port, {"LD_LIBRARY_PATH": str(root / "usr/lib/syslog-ng")})

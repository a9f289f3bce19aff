"""Programs that use the server as its users' do: what they print."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.paths import ROOT
from tests.support.requirements import need, need_success

CLIENTS = ROOT / "tests" / "clients"
TIMEOUT = 60
_PREDIS = "require '/usr/share/php/Predis/Autoloader.php';"
_RUNNERS = {"php": "php", "rb": "ruby", "py": sys.executable}


def output_of(*command: str) -> str:
    """What the command prints, started in the repository; it must succeed, and warn of nothing."""
    ended = subprocess.run(
        command,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT,
        cwd=ROOT,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    return ended.stdout


def need_library(script: str) -> None:
    """Require the library by which a program of tests/clients uses Redis."""
    if script.endswith("predis.php"):
        need_success("php-predis", "php", "-r", _PREDIS)
    elif script.endswith(".php"):
        need_success("php-redis", "php", "-r", "exit(class_exists('Redis') ? 0 : 1);")
    elif script.endswith(".rb"):
        need_success("ruby-redis", "ruby", "-e", "require 'redis'")


def run_script(script: str, *arguments: str) -> str:
    """Return the output of a program of tests/clients, which must succeed and warn of nothing."""
    need_library(script)
    return output_of(_RUNNERS[script.rpartition(".")[2]], str(CLIENTS / script), *arguments)


def outcome_of(*command: str) -> tuple[int, list[str]]:
    """Run a command that may fail. Return its exit status, and the lines that it prints."""
    ended = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return ended.returncode, ended.stdout.splitlines()


def typed(program: str, port: int, lines: Sequence[str]) -> str:
    """Return what telnet or nc, connected to the port, shows when the lines are typed."""
    path = need(program, {"telnet": "telnet", "nc": "netcat-openbsd"}[program])
    # telnet sends CRLF for a line feed; nc sends what it reads.
    end = "\n" if program == "telnet" else "\r\n"
    reading, writing = os.pipe()
    with open(reading, "rb") as standard_input, open(writing, "wb") as keyboard:
        keyboard.write(end.join([*lines, ""]).encode())
        keyboard.flush()
        if program == "nc":
            keyboard.close()  # nc then stays until the server closes; telnet would leave at once
        output = subprocess.run(
            [path, "127.0.0.1", str(port)],
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        ).stdout
    return output.decode().replace("\r", "").rpartition("Escape character is '^]'.\n")[2]


def need_php_files(files: Mapping[str, str]) -> None:
    """Check that PHP finds each file. The keys are the Debian packages that have them. See `need_success`."""
    for package, file in files.items():
        need_success(package, "php", "-r", f"exit((@include '{file}') ? 0 : 1);")


def examples(guide: str) -> list[tuple[str, str]]:
    """Return the programs in Python of a guide, each with its output."""
    text = (ROOT / guide).read_text("utf-8")
    found: list[tuple[str, str]] = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    assert len(found) == text.count("```python")
    return found

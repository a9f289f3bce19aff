"""Programs that use the server as its users' do: what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

from tests.support.paths import ROOT
from tests.support.requirements import need_success

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

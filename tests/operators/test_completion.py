"""Shell completion: the scripts for bash, zsh and fish offer commands, options and their values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pressure_server.app.cli import cli
from tests.support.programs import TIMEOUT
from tests.support.requirements import need

pytestmark = pytest.mark.clients

LINES = {
    "pressure-server ": set(cli.commands),
    "pressure-server d": {"doctor", "demo"},
    "pressure-server --log": {"--log-level", "--log-format"},
    "pressure-server --log-level ": {"debug", "info", "warning", "error"},
    "pressure-server serve --log-level d": {"debug"},
    "pressure-server --put-timeout 2s --overflow e": {"error"},
    "pressure-server ping --r": {"--ready"},
}
IN_ALL = ("pressure-server d", "pressure-server --log", "pressure-server serve --log-level d")
# These functions stand for what the shells have only at a prompt.
_BASH = """
eval "$(_PRESSURE_SERVER_COMPLETE=bash_source pressure-server)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_pressure_server_completion pressure-server 2> >(grep -v compopt >&2)
printf '%s\\n' "${COMPREPLY[@]}"
"""
_ZSH = """
compdef() { :; }
_describe() { for one in ${(P)3}; do print -r -- ${one%%:*}; done }
compadd() { print -rl -- ${(P)@[-1]}; }
eval "$(_PRESSURE_SERVER_COMPLETE=zsh_source pressure-server)"
words=("$@") CURRENT=$#
_pressure_server_completion
"""
_FISH = """
_PRESSURE_SERVER_COMPLETE=fish_source pressure-server | source
complete --do-complete "$argv"
"""


def offered(shell: str, line: str) -> set[str]:
    """Return what the shell offers at the end of the line."""
    program = need(shell, shell)
    words = line.split(" ")
    command = {
        "bash": [program, "--norc", "-c", _BASH, "bash", *words],
        "zsh": [program, "-f", "-c", _ZSH, "zsh", *words],
        "fish": [program, "--no-config", "-c", _FISH, line],
    }[shell]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert not ended.stderr
    return {one.partition("\t")[0] for one in ended.stdout.splitlines() if one}


# What is offered is found by the program; the shells differ in how they ask for it, and show it.
@pytest.mark.parametrize(
    ("shell", "line"),
    [
        *(("bash", line) for line in LINES),
        *(("zsh", line) for line in IN_ALL),
        *(("fish", line) for line in IN_ALL),
    ],
)
def test_a_shell_offers_what_can_follow(shell: str, line: str) -> None:
    assert offered(shell, line) == LINES[line]


def test_files_are_left_to_the_shell() -> None:
    environment = {
        **os.environ,
        "_PRESSURE_SERVER_COMPLETE": "bash_complete",
        "COMP_WORDS": "pressure-server --users /etc/pass",
        "COMP_CWORD": "2",
    }
    program = Path(sys.executable).with_name("pressure-server")
    ended = subprocess.run(
        [program], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    assert ended.stdout == "file,/etc/pass\n"

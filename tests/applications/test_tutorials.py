"""The tutorials, as written: their files, and in two terminals their commands and what these print."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.support.client_scripts import need_library, need_php_files
from tests.support.installed_applications import INSTALLED, SCRIPTS
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need

pytestmark = [pytest.mark.clients, pytest.mark.slow]

_TUTORIALS = ROOT / "docs" / "tutorials"
_BLOCK = re.compile(r'^```\w+ title="([^"\n]*)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# The ports of the pages, and the queue of dead letters that a page says to look at in the console.
_PORTS = ("4000", "4080", "11300")
_DEAD_LETTERS = re.compile(r"click\s`(.*?)`")
_COLOUR_OR_RETURN = re.compile(r"\x1b\[[\d;]*m|\r")
_CTRL_C = "\x03"
_PROMPT = "\n$\n"
# What the shell prints of its jobs, at a moment of its choice.
_OF_SHELL = re.compile(r"\[\d\]")


class Terminal:
    """A terminal with an interactive shell. A file has what is typed and printed there."""

    def __init__(self, log: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self._log = log
        self._begin = 0  # where what the last command has printed begins
        self._expected: list[str] = []  # the lines that it has to print
        self._session = log.with_suffix(".session")
        # The shell and all that it starts have the session with the number of its process.
        shell = f"echo $$ > {self._session}; exec bash --norc --noprofile -i"
        self._process = subprocess.Popen(
            [need("script", "bsdutils"), "--quiet", "--flush", "--command", shell, log],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=folder, env=variables,
        )  # fmt: skip
        wait_for(lambda: self._session.exists() and self._session.read_text(), "the shell")

    def _output(self) -> str:
        return _COLOUR_OR_RETURN.sub("", self._log.read_text(errors="replace"))

    def type(self, text: str) -> None:
        """Type a command and Enter, when the shell prompts for it; or Ctrl-C, at once."""
        if text != _CTRL_C:
            wait_for(lambda: _PROMPT in self._output()[self._begin :], f"a prompt before {text!r}")
        self._begin, self._expected = len(self._output()), []
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def expect(self, line: str) -> None:
        """Wait until the last command has printed one more such line, whatever the numbers in it."""
        self._expected.append(line)
        same = re.compile("^" + re.sub(r"\d+", r"\\d+", re.escape(line)) + "$", re.MULTILINE)
        count = self._expected.count(line)
        wait_for(
            lambda: len(same.findall(self._output()[self._begin :])) >= count,
            f"line {count} of {line!r} in the terminal",
        )

    def end(self) -> None:
        """Press Ctrl-C, and kill what is left. Print what the terminal has shown."""
        self.type(_CTRL_C)
        number = int(self._session.read_text())
        subprocess.run([need("pkill", "procps"), "--session", str(number)], check=False)
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGHUP)
        try:
            self._process.wait(TIMEOUT)
        finally:
            subprocess.run(["pkill", "-KILL", "--session", str(number)], check=False)
            print(f"{self._log.name}:\n{self._output()}")


@contextmanager
def terminals(folder: Path, *programs: Path) -> Iterator[dict[str, Terminal]]:
    """Open two terminals in the folder. They find programs in these folders first."""
    variables = {
        "PATH": os.pathsep.join((*map(str, programs), str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(folder.parent),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PS1": _PROMPT,  # what a worker in the background prints begins a line
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    opened: dict[str, Terminal] = {}
    try:
        for name in ("Terminal 1", "Terminal 2"):
            opened[name] = Terminal(folder.parent / f"{name}.log".replace(" ", "-"), folder, variables)
        yield opened
    finally:
        for terminal in reversed(opened.values()):
            terminal.end()


def follow(terminal: Terminal, transcript: str) -> None:
    """Type the commands of a transcript, and wait for the lines after each."""
    for line in transcript.splitlines():
        if line.startswith("$ "):
            terminal.type(line[2:] + "\n")
            continue
        if line.startswith("^C"):  # the terminal shows it so
            terminal.type(_CTRL_C)
        if not _OF_SHELL.match(line):
            terminal.expect(line)


# Of Laravel, Debian has the components only.
LARAVEL = {
    "php-illuminate-queue": "Illuminate/Queue/autoload.php",
    "php-illuminate-events": "Illuminate/Events/autoload.php",
    "php-pda-pheanstalk": "Pheanstalk/autoload.php",
}


def _need_celery() -> None:
    if not (INSTALLED / "installed").exists():
        pytest.fail("the applications are not installed: run make test-applications")


# By page: what requires that its library is installed.
PAGES: dict[str, Callable[[], None]] = {
    "php": partial(need_library, "_.php"),
    "ruby": partial(need_library, "_.rb"),
    "python": lambda: None,
    "celery": _need_celery,
    "laravel": partial(need_php_files, LARAVEL),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_does_what_it_says(page: str, tmp_path: Path) -> None:
    PAGES[page]()
    folder = tmp_path / "mails"
    folder.mkdir()
    if page == "laravel":
        shutil.copy(SCRIPTS / "artisan.php", folder / "artisan")
    text = (_TUTORIALS / f"{page}.md").read_text("utf-8")
    ports = dict(zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True))
    for old, new in ports.items():
        text = text.replace(old, new)
    programs = (INSTALLED / "python" / "bin",) if page == "celery" else ()
    with terminals(folder, *programs) as opened:
        for title, content in _BLOCK.findall(text):
            if title in opened:
                follow(opened[title], content)
            else:
                (folder / title).parent.mkdir(parents=True, exist_ok=True)
                (folder / title).write_text(content)
        # Last the reader opens the console.
        queue = _DEAD_LETTERS.search(text)
        assert queue
        url = f"http://127.0.0.1:{ports['4080']}/api/queue/events?id={queue[1]}"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as events:
            assert b"nobody" in events.readline() + events.readline()

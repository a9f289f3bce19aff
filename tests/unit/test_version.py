"""The version of a clone, of a package that was built from one, and of the release."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from pressure_server import version

RELEASE = version.RELEASE


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of a package that has nothing but the module."""
    folder = tmp_path / "pressure_server"
    folder.mkdir()
    shutil.copy(version.__file__, folder / "version.py")
    return folder


@pytest.fixture
def clone(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a repository with one commit."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    git(package.parent, "init", "--quiet")
    git(package, "add", ".")
    commit(package)
    return package


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.check_output(["git", *named, *words], cwd=folder, text=True).strip()


def commit(folder: Path) -> None:
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a")


def version_of(package: Path) -> str:
    told = runpy.run_path(str(package / "version.py"))["VERSION"]
    assert isinstance(told, str)
    return told


def test_a_clone_adds_its_commit(clone: Path) -> None:
    assert version_of(clone) == f"{RELEASE}+{git(clone, 'rev-parse', 'HEAD')[:8]}"


@pytest.mark.parametrize("words", [("tag",), ("tag", "--annotate", "--message", "a")])
def test_the_commit_with_the_tag_of_the_release_is_the_release(clone: Path, words: tuple[str, ...]) -> None:
    git(clone, "tag", "another")
    git(clone, *words, f"v{RELEASE}")
    git(clone, "branch", "other")
    assert version_of(clone) == RELEASE
    commit(clone)
    assert version_of(clone).startswith(f"{RELEASE}+")


def test_a_clone_of_which_git_tells_nothing_is_not_the_release(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(clone.parent / ".git/objects")
    assert version_of(clone) == f"{RELEASE}+unknown"
    monkeypatch.setenv("PATH", str(clone))
    assert version_of(clone) == f"{RELEASE}+unknown"


def test_a_package_has_the_commit_that_its_build_noted(package: Path) -> None:
    assert version_of(package) == RELEASE
    (package / "commit.txt").write_text("")
    assert version_of(package) == RELEASE
    (package / "commit.txt").write_text("4894dc5b")
    assert version_of(package) == f"{RELEASE}+4894dc5b"

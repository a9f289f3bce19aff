"""The wheel and the sdist: they have all files, and what they install starts and serves."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import redis

from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need_registry

PACKAGES = ("pressure_server", "handlers")
# A page as the console has them; its kind must be in the packages even if the repository has none.
PAGES = tuple(f"pressure_server/net/static/page.{suffix}" for suffix in ("html", "js", "css", "svg", "txt"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, folder: Path) -> str:
    """Run a command outside the repository, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PRESSURE_COMPILE"] = "0"
    ended = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=500, check=False
    )
    if ended.returncode:
        need_registry(ended.stdout + ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with some pages."""
    folder = tmp_path_factory.mktemp("source")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, cwd=ROOT, text=True).split("\n"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for name in PAGES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a page")
    return folder


@pytest.fixture(scope="module")
def built(source: Path) -> tuple[Path, Path]:
    """The wheel and the sdist. The wheel is built from the sdist."""
    run(sys.executable, "-m", "build", "--no-isolation", folder=source)
    (wheel,) = (source / "dist").glob("*.whl")
    (sdist,) = (source / "dist").glob("*.tar.gz")
    return wheel, sdist


def wanted(source: Path) -> set[str]:
    """Return the files of the packages."""
    files = (path for package in PACKAGES for path in (source / package).rglob("*") if path.is_file())
    return {str(path.relative_to(source)) for path in files if not {"__pycache__"} & set(path.parts)}


def test_both_have_all_files_of_the_packages(source: Path, built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    files = wanted(source)
    assert {Path(name).suffix for name in files} >= {".py", ".lua", ".typed", ".html", ".js", ".css", ".svg"}
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert in_wheel == files
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert files <= in_sdist
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= in_sdist


def test_what_the_wheel_installs_serves_with_the_embedded_backend(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, _sdist = built
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv, folder=tmp_path)
    run(venv / "bin/pip", "install", "--quiet", wheel, folder=tmp_path)
    program = venv / "bin/pressure-server"
    assert run(program, "--version", folder=tmp_path).startswith("pressure-server, version ")
    where = run(venv / "bin/python", "-c", "import handlers; print(handlers.__file__)", folder=tmp_path)
    assert where.startswith(str(venv))

    log, socket = tmp_path / "log", tmp_path / "socket"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [program, "--listen", f"resp+unix://{socket}", "--data-dir", tmp_path / "data"],
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(lambda: " ready: " in log.read_text() or server.poll() is not None, "the server to be ready")
        assert server.poll() is None, log.read_text()
        with redis.Redis(unix_socket_path=str(socket)) as client:
            assert client.ping()
            assert client.sadd("q", "a") == 1
            assert client.spop("q") == b"a"
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT) == 0, log.read_text()

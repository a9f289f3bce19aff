"""The wheels and the sdists of server and clients: they have all files, and run where only Python is."""

import ast
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from pressure_server.version import RELEASE
from tests.operators.tracked_files import copy_files, tracked_files
from tests.support.made_once import made_once
from tests.support.paths import ROOT
from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need_registry, registry_variables

PACKAGES = ("pressure_server", "handlers")
CLIENT = ROOT / "client"
# A page as the console has them; its kind must be in the packages even if the repository has none.
PAGES = tuple(f"pressure_server/net/static/page.{suffix}" for suffix in ("html", "js", "css", "svg", "txt"))


def run(*command: str | Path, folder: Path, expected: int = 0) -> str:
    """Run a command where nothing but Python is, and return what it prints."""
    variables = {**registry_variables(), "PATH": os.devnull, "PRESSURE_COMPILE": "0"}
    ended = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=500, check=False
    )
    if ended.returncode not in (0, expected):
        need_registry(ended.stdout + ended.stderr)
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with some pages. It is no clone, so its version is the release."""

    def copy(folder: Path) -> None:
        copy_files(tracked_files(), folder)
        for name in PAGES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("a page")

    return made_once(tmp_path_factory, "source", copy)


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheels and the sdists. The wheels are built from the sdists."""

    def build(dist: Path) -> None:
        for folder in (source, source / "client"):
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, folder=folder)

    return made_once(tmp_path_factory, "dist", build)


@pytest.fixture(scope="module")
def server(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of the server."""
    wheel = built / f"pressure_server-{RELEASE}-py3-none-any.whl"
    return made_once(tmp_path_factory, "server", partial(install, wheel))


@pytest.fixture(scope="module")
def clients(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of the clients."""
    wheel = built / f"pressure_client-{RELEASE}-py3-none-any.whl"
    return made_once(tmp_path_factory, "clients", partial(install, wheel))


def install(wheel: Path, venv: Path) -> None:
    run(sys.executable, "-m", "venv", venv, folder=venv)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", wheel, folder=venv)
    run(venv / "bin/python", "-m", "pip", "check", folder=venv)


@pytest.fixture
def socket(server: Path, tmp_path: Path) -> Iterator[Path]:
    """The unix socket of an installed server, which keeps its data in the embedded backend."""
    log, socket = tmp_path / "log", tmp_path / "socket"
    options = ("--listen", f"resp+unix://{socket}", "--data-dir", tmp_path / "data")
    started = subprocess.Popen(
        [server / "bin/pressure-server", *options],
        cwd=tmp_path, env={}, stdin=subprocess.DEVNULL, stdout=log.open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(
            lambda: " ready: " in log.read_text() or started.poll() is not None, "the server to be ready"
        )
        assert started.poll() is None, log.read_text()
        yield socket
    finally:
        started.send_signal(signal.SIGTERM)
        assert started.wait(TIMEOUT) == 0, log.read_text()


def files_of(folder: Path, *packages: str) -> set[str]:
    """Return the files of the packages in a folder."""
    files = (path for package in packages for path in (folder / package).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if not {"__pycache__"} & set(path.parts)}


def content_of(built: Path, name: str) -> tuple[set[str], set[str]]:
    """Return the files in a wheel, and those in an sdist."""
    (wheel,) = built.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = {name for name in opened.namelist() if ".dist-info/" not in name}
    (sdist,) = built.glob(f"{name}-*.tar.gz")
    with tarfile.open(sdist) as archive:
        return in_wheel, {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_packages_of_the_server_have_all_its_files(source: Path, built: Path) -> None:
    files = files_of(source, *PACKAGES)
    assert {Path(name).suffix for name in files} >= {".py", ".lua", ".typed", ".html", ".js", ".css", ".svg"}
    in_wheel, in_sdist = content_of(built, "pressure_server")
    assert in_wheel == files
    assert files <= in_sdist
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= in_sdist


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_packages_of_the_clients_have_the_same_files_as_the_server_has(source: Path, built: Path) -> None:
    in_wheel, in_sdist = content_of(built, "pressure_client")
    assert files_of(source, "pressure_server/client") <= in_wheel
    assert in_wheel - {"pressure_server/commit.txt"} < files_of(source, "pressure_server")
    for name in in_wheel - {"pressure_server/commit.txt"}:
        assert (source / "client" / name).read_bytes() == (source / name).read_bytes()
    assert in_wheel | {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= in_sdist


def test_the_package_of_the_clients_has_all_modules_that_they_import() -> None:
    sources = runpy.run_path(str(CLIENT / "setup.py"))["SOURCES"]
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources}
    for source in sources:
        tree = ast.parse((ROOT / source).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pressure_server"):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                assert node.module in modules, source
                assert names & modules or node.module != "pressure_server", source


def test_both_packages_ask_for_the_same_versions() -> None:
    server, clients = project(ROOT), project(CLIENT)
    assert set(clients["dependencies"]) < set(server["dependencies"])
    extras = server["optional-dependencies"]
    assert clients["optional-dependencies"] == {name: extras[name] for name in ("celery", "dramatiq")}
    for key in ("license", "requires-python"):
        assert clients[key] == server[key]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_package_index_accepts_the_descriptions(built: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), folder=built)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_the_wheel_installs_serves_with_the_embedded_backend(server: Path, socket: Path) -> None:
    where = run(server / "bin/python", "-c", "import handlers; print(handlers.__file__)", folder=server)
    assert where.startswith(str(server))
    with redis.Redis(unix_socket_path=str(socket)) as client:
        assert client.ping()
        assert client.info("server")["pressure_server_version"] == RELEASE
        assert client.sadd("q", "a") == 1
        assert client.spop("q") == b"a"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_clients_work_with_what_their_package_installs(clients: Path, socket: Path) -> None:
    program = (
        "import sys\n"
        "from pressure_server.client import JobQueue, LogQueue\n"
        "with JobQueue('jobs', sys.argv[1]) as jobs, LogQueue('log', sys.argv[1]) as log:\n"
        "    jobs.create(), log.create()\n"
        "    print(jobs.put('a') > 0, log.put('b'), [job.message for job in jobs.jobs(timeout=0.1)])\n"
    )
    told = run(clients / "bin/python", "-c", program, f"unix://{socket}", folder=clients)
    assert told == "True 0 [b'a']\n"
    names = {path.name.partition("-")[0] for path in clients.glob("lib/*/site-packages/*.dist-info")}
    assert names <= {"hiredis", "pip", "pressure_client", "redis", "setuptools"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_refuses_modules_of_another_version_of_the_clients(
    server: Path, built: Path, tmp_path: Path
) -> None:
    both = tmp_path / "venv"
    shutil.copytree(server, both, symlinks=True)
    (site,) = both.glob("lib/*/site-packages")
    program = ("-c", "import sys; sys.path.insert(0, sys.argv[1]); from pressure_server.app.cli import run")
    (wheel,) = built.glob("pressure_client-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    assert run(server / "bin/python", *program, site, folder=tmp_path) == ""
    (described,) = site.glob("pressure_client-*.dist-info/METADATA")
    described.write_text(described.read_text().replace(f"\nVersion: {RELEASE}\n", "\nVersion: 1.0.1\n"))
    told = run(server / "bin/python", *program, site, folder=tmp_path, expected=1)
    assert f"pressure-client 1.0.1 and pressure-server {RELEASE} have files in common" in told

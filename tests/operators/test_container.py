"""The Dockerfile without a container engine: its steps are followed in a directory. The compose file."""

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest
import redis
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pressure_server.backend.address import ClusterAddress, SentinelAddress, address_of
from pressure_server.version import RELEASE
from tests.operators.compiling import compile_one_module
from tests.operators.tracked_files import copy_files, tracked_files
from tests.support.paths import ROOT
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need, need_registry, registry_variables

COMPOSE = ROOT / "deploy/docker-compose.yml"
COMPOSE_CLUSTER = ROOT / "deploy/docker-compose.cluster.yml"
COMPOSE_SENTINEL = ROOT / "deploy/docker-compose.sentinel.yml"
IMAGE = ROOT / "deploy/image"
REQUIREMENTS = IMAGE / "requirements.txt"


class Stage:
    """A stage of a Dockerfile: its instructions, as pairs of a name and what follows, without flags."""

    def __init__(self) -> None:
        self.instructions: list[tuple[str, str]] = []

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.instructions if found == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    def words(self, name: str) -> list[str]:
        """Return the words of the last such instruction. Raise ValueError for the shell form."""
        words: list[str] = json.loads(self.last(name).removeprefix("CMD "))
        return words


def stages_of(text: str) -> list[Stage]:
    """Parse a Dockerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\[ \t]*\n", "", "\n".join(lines)).splitlines():
        name, _, value = line.strip().partition(" ")
        if name.upper() == "FROM":
            stages.append(Stage())
        elif stages:
            value = re.sub(r"^(\s*--[a-z-]+=\S+)+\s", "", value).strip()
            stages[-1].instructions.append((name.upper(), value))
    return stages


def ignore_rules(text: str) -> list[tuple[re.Pattern[str], bool]]:
    """Return the patterns of a .dockerignore, each with whether it leaves files out."""
    rules = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            pattern = re.escape(line.strip().removeprefix("!").strip("/"))
            pattern = pattern.replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
            rules.append((re.compile(f"{pattern}(/.*)?"), not line.startswith("!")))
    return rules


def context_files() -> list[str]:
    """Return the files that `docker build` sends from a clone of the working tree."""
    rules = ignore_rules((ROOT / ".dockerignore").read_text())

    def is_left_out(name: str) -> bool:
        return next((out for pattern, out in reversed(rules) if pattern.fullmatch(name)), False)

    return [name for name in tracked_files() if not is_left_out(name)]


class Image:
    """An image built in a directory: absolute paths of the Dockerfile are below `root`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.context = folder / "context"
        self.workdir = self.root
        self.environment = {"PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
        self.environment |= registry_variables()
        copy_files(context_files(), self.context)
        compile_one_module(self.context)
        self._make_python()

    def _make_python(self) -> None:
        """Make `python` start the system's Python, not the virtual environment that runs the tests."""
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        python = self.folder / "bin/python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(str(base))} "$@"\n')
        python.chmod(0o755)

    def mapped(self, text: str) -> str:
        """Return the text with /src, /venv and /data below `root`."""
        return re.sub(r"(?<![\w./])/(?=(?:src|venv|data)\b)", f"{self.root}/", text)

    def follow(self, name: str, value: str) -> None:
        match name:
            case "WORKDIR":
                self.workdir = Path(self.mapped(value))
                self.workdir.mkdir(parents=True)
            case "ARG":
                argument, _, default = value.partition("=")
                self.environment[argument] = default
            case "ENV":
                for variable, _, text in (pair.partition("=") for pair in shlex.split(value)):
                    self.environment[variable] = self.mapped(Template(text).substitute(self.environment))
            case "COPY":
                *sources, target = value.split()
                self._copy(sources, target)
            case "RUN":
                self._run(self.mapped(value))

    def _copy(self, sources: list[str], target: str) -> None:
        """Copy as COPY does: the content of directories, and files."""
        to = self.workdir / self.mapped(target)
        for source in sources:
            path = self.context / source
            if path.is_dir():
                shutil.copytree(path, to, dirs_exist_ok=True)
            else:
                (to if target.endswith("/") else to.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)

    def _run(self, command: str) -> None:
        ended = self.execute("/bin/sh", "-c", command)
        output = ended.stdout + ended.stderr
        if ended.returncode:
            need_registry(output)
        assert ended.returncode == 0, f"{command}: {output}"

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.workdir, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return stages_of((ROOT / "Dockerfile").read_text())


@pytest.fixture
def image(stages: list[Stage], tmp_path: Path) -> Image:
    """The image: the first stage is built, and the variables of the second are set."""
    built = Image(tmp_path / "image")
    build, final = stages
    for name, value in build.instructions:
        built.follow(name, value)
    built.workdir = built.root
    for value in final.all("ENV"):
        built.follow("ENV", value)
    listen = built.environment["PRESSURE_LISTEN"]
    built.environment["PRESSURE_LISTEN"] = listen.replace(":4000", f":{free_ports(1)[0]}")
    return built


class Container:
    """A run of an image: `docker run IMAGE WORDS`, where its CMD stands for no words."""

    def __init__(self, image: Image, final: Stage, *words: str) -> None:
        self._image = image
        self._health = final.words("HEALTHCHECK")
        self.log_file = image.folder / "log"
        self.process = subprocess.Popen(
            command_of(final, *words), cwd=image.workdir, env=image.environment, stdin=subprocess.DEVNULL,
            stdout=self.log_file.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def health(self) -> int:
        """Return the exit status of the HEALTHCHECK."""
        # In a container, the server is process 1.
        words = [str(self.process.pid) if word == "1" else word for word in self._health]
        return self._image.execute(*words).returncode

    def stop(self, number: int) -> int:
        """Send a signal. Return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


def command_of(final: Stage, *words: str) -> list[str]:
    """Return what `docker run IMAGE WORDS` executes."""
    return [*final.words("ENTRYPOINT"), *(words or final.words("CMD"))]


@contextlib.contextmanager
def running(image: Image, final: Stage, *words: str) -> Iterator[Container]:
    """Run a container until the block ends. It is healthy when the block begins."""
    started = Container(image, final, *words)
    try:
        wait_for(lambda: started.health() == 0, "the health check to succeed")
        yield started
    finally:
        if started.process.poll() is None:
            started.stop(signal.SIGTERM)


def assert_describes_the_image(bill: Path) -> None:
    """Check that a bill of materials is valid, and lists the locked versions and the server."""
    # These take a second, which workers without this test save.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = bill.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert found["specVersion"] == "1.6"
    listed = {canonicalize_name(one["name"]): one["version"] for one in found["components"]}
    assert locked(REQUIREMENTS).items() <= listed.items()
    assert found["metadata"]["component"]["name"] == "pressure-server"


def locked(file: Path) -> dict[str, str]:
    """Return the versions of a lock file by name. Raise AssertionError if one has no hash."""
    found = {}
    for entry in re.sub(r"\\\n", " ", file.read_text()).splitlines():
        if entry and not entry.lstrip().startswith("#"):
            requirement, *hashes = entry.split(" --hash=sha256:")
            name, version = requirement.strip().split("==")
            assert hashes, entry
            found[str(canonicalize_name(name))] = version
    return found


@pytest.mark.parametrize("file", ["requirements.txt", "build.txt"])
def test_the_lock_satisfies_what_the_project_asks_for(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"]
    if file == "build.txt":
        wanted = (IMAGE / "build.in").read_text().partition("\n")[2].splitlines()
        assert set(project["build-system"]["requires"]) <= set(wanted)
    versions = locked(IMAGE / file)
    for requirement in map(Requirement, wanted):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, (
            f"{requirement}: make lock"
        )


def test_everything_that_the_image_downloads_has_a_hash(stages: list[Stage]) -> None:
    steps = [step for run in stages[0].all("RUN") for step in run.split("&&")]
    installing = [step for step in steps if re.search(r"\bpip .*\b(install|wheel)\b", step)]
    assert len(installing) == 4
    for step in installing:
        assert "--require-hashes" in step or "--no-index" in step or "--no-build-isolation" in step, step


def test_the_bill_of_materials_is_valid(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    command = re.search(r"\(BIN\)/cyclonedx-py ((?:.|\\\n)+)\n\n", makefile)
    assert command is not None
    bill = tmp_path / "sbom.cdx.json"
    words = command[1].replace("\\\n", " ").replace("build/sbom.cdx.json", str(bill)).split()
    program = [sys.executable, "-W", "ignore", "-m", "cyclonedx_py", *words]
    # It takes seconds of processor time, which other tests need, too.
    subprocess.run(program, cwd=ROOT, check=True, timeout=100)
    assert_describes_the_image(bill)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_image_is_healthy_stops_cleanly_and_keeps_its_data(image: Image, stages: list[Stage]) -> None:
    """One test for all, because the image takes a minute or more to build."""
    found = image.execute("python", "-c", "import pressure_server as p; print(p.__file__)")
    assert found.stdout.startswith(f"{image.root}/venv/lib/"), found.stdout + found.stderr
    assert_describes_the_image(image.root / "venv/sbom.cdx.json")
    # Nobody has told the build its commit, as nobody does without --build-arg.
    version = image.execute("pressure-server", "--version").stdout
    assert version == f"pressure-server, version {RELEASE}+unknown (compiled)\n"
    final = stages[-1]
    port = int(image.environment["PRESSURE_LISTEN"].rpartition(":")[2])
    with running(image, final) as container:
        log = container.log_file.read_text()
        assert f"listening on resp://0.0.0.0:{port}" in log, log
        with redis.Redis(port=port) as client:
            assert client.sadd("q", "a", "b") == 2
            assert client.spop("q") == b"a"
        stop_signal = signal.Signals[final.last("STOPSIGNAL")]
        assert container.stop(stop_signal) == 0, container.log_file.read_text()
        assert container.health() == 1
        assert f"data in {image.root}/data\n" in container.log_file.read_text()
    # Words after the name of the image are options, or a command.
    (port,) = free_ports(1)
    options = ("--listen", f"resp://0.0.0.0:{port}", "--max-clients", "7")
    with running(image, final, *options), redis.Redis(port=port) as client:
        assert client.config_get("maxclients") == {"maxclients": "7"}
        assert client.spop("q") == b"b"
        found = image.execute(*command_of(final, "doctor"))
        assert (found.returncode, found.stdout) == (0, "1 queue checked: no problems\n"), found.stderr


def test_the_server_is_not_root_and_owns_its_volume(stages: list[Stage]) -> None:
    final = stages[-1]
    user, group = final.last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert final.last("VOLUME") == "/data"
    commands = "".join(final.all("RUN"))
    assert f"useradd --uid {user} --gid {group} " in commands
    assert f"install --directory --owner={user} --group={group} --mode=700 /data" in commands


def test_options_and_commands_of_docker_run_go_to_the_server(stages: list[Stage]) -> None:
    assert command_of(stages[-1], "doctor", "--repair") == ["pressure-server", "doctor", "--repair"]
    # Some other files give the container a command of its own.
    for file in (COMPOSE, COMPOSE_CLUSTER, COMPOSE_SENTINEL):
        assert not {"command", "entrypoint"} & compose(file)["services"]["pressure-server"].keys()
    for page in ROOT.glob("docs/**/*.md"):
        assert not re.search(r"docker run [^\n]*pressure-server pressure-server", page.read_text()), page


def test_the_labels_of_the_image_are_those_of_the_project(stages: list[Stage]) -> None:
    labels = dict(word.partition("=")[::2] for one in stages[-1].all("LABEL") for word in shlex.split(one))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.title"] == project["name"]
    assert labels[f"{prefix}.version"] == RELEASE
    assert labels[f"{prefix}.licenses"] == project["license"]
    assert labels[f"{prefix}.base.name"] == "docker.io/library/${PYTHON}"
    assert labels[f"{prefix}.revision"] == "${REVISION}"
    assert labels[f"{prefix}.description"]


def test_the_build_context_contains_only_copied_files() -> None:
    tops = {name.partition("/")[0] for name in context_files()}
    copied = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "pressure_server", "handlers"}
    assert tops == {*copied, "deploy"}
    assert all(name.startswith("deploy/image/") for name in context_files() if name.startswith("deploy"))


def compose(file: Path = COMPOSE) -> dict[str, Any]:
    """Return a compose file."""
    parsed: dict[str, Any] = yaml.safe_load(file.read_text())
    return parsed


def addresses_of(services: dict[str, Any], prefix: str) -> dict[str, str]:
    """Return the fixed addresses of the services whose names begin with `prefix`."""
    return {
        name: service["networks"]["default"]["ipv4_address"]
        for name, service in services.items()
        if name.startswith(prefix)
    }


def test_the_compose_file_starts_a_server_and_a_redis(stages: list[Stage]) -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    server, backend = services["pressure-server"], services["redis"]
    assert (COMPOSE.parent / server["build"] / "Dockerfile").samefile(ROOT / "Dockerfile")
    variables = server["environment"]
    assert variables["PRESSURE_BACKEND"] == "redis://redis:6379/0"
    assert server["volumes"] == [f"./pressure-server.toml:{variables['PRESSURE_CONFIG']}:ro"]
    assert server["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert server["ports"] == ["127.0.0.1:4000:4000", "127.0.0.1:4080:4080"]
    assert backend["command"][:3] == ["redis-server", "--appendonly", "yes"]
    assert backend["volumes"] == ["queues:/data"]
    assert "queues" in volumes
    assert backend["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    assert server["healthcheck"]["test"] == ["CMD", *stages[-1].words("HEALTHCHECK")]


def test_prometheus_and_grafana_start_only_with_their_profile() -> None:
    services = compose()["services"]
    with_profile = {name for name, service in services.items() if service.get("profiles") == ["monitoring"]}
    assert with_profile == {"prometheus", "grafana"}
    for name in with_profile:
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"]), "a version, not a moving tag"
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])


@pytest.mark.parametrize("file", [COMPOSE_CLUSTER, COMPOSE_SENTINEL], ids=lambda file: file.name)
def test_the_other_compose_files_run_the_same_server(file: Path) -> None:
    server, usual = (compose(one)["services"]["pressure-server"] for one in (file, COMPOSE))
    for key in ("build", "image", "ports", "healthcheck", "stop_grace_period", "restart"):
        assert server[key] == usual[key]
    assert server["environment"]["PRESSURE_HTTP"] == usual["environment"]["PRESSURE_HTTP"]
    services = compose(file)["services"]
    for needed in (name for service in services.values() for name in service.get("depends_on", ())):
        assert needed in services


def test_a_compose_file_starts_a_cluster_of_three_masters() -> None:
    services = compose(COMPOSE_CLUSTER)["services"]
    nodes = addresses_of(services, "node-")
    assert len(set(nodes.values())) == 6
    created = re.findall(r"([\d.]+):6379", services["create-cluster"]["command"][-1])
    assert created == list(nodes.values())
    assert set(services["create-cluster"]["depends_on"]) == set(nodes)
    environment = services["pressure-server"]["environment"]
    address = address_of(environment["PRESSURE_BACKEND"])
    assert isinstance(address, ClusterAddress)
    assert {node.host for node in address.nodes} <= set(nodes.values())
    assert all(services[name]["volumes"] == [f"{name}:/data"] for name in nodes)


def test_a_compose_file_starts_a_master_that_sentinels_watch() -> None:
    services = compose(COMPOSE_SENTINEL)["services"]
    master, *replicas = addresses_of(services, "redis-").items()
    assert "replicaof" not in str(services[master[0]]["command"])
    assert all(f"replicaof {master[1]} 6379" in services[name]["command"] for name, _ in replicas)
    sentinels = addresses_of(services, "sentinel-")
    assert all(
        f"sentinel monitor queues {master[1]} 6379 2" in services[name]["command"] for name in sentinels
    )
    backend = services["pressure-server"]["environment"]["PRESSURE_BACKEND"]
    assert backend == f"redis+sentinel://{','.join(f'{name}:26379' for name in sentinels)}/queues/0"
    assert isinstance(address_of(backend), SentinelAddress)
    assert all(services[name]["volumes"] == [f"{name}:/data"] for name in (*sentinels, master[0]))


@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_CLUSTER, COMPOSE_SENTINEL], ids=lambda file: file.name)
def test_what_the_compose_file_mounts_exists(file: Path) -> None:
    """The dashboard and the alerts are checked by tests of their own."""
    parsed = compose(file)
    for service in parsed["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert source in parsed["volumes"] or (COMPOSE.parent / source).exists(), mount


@pytest.mark.clients
def test_prometheus_accepts_its_configuration_and_scrapes_the_server() -> None:
    file = COMPOSE.parent / "prometheus/prometheus.yml"
    promtool = need("promtool", "prometheus")
    subprocess.run([promtool, "check", "config", str(file)], check=True, timeout=TIMEOUT)
    (job,) = yaml.safe_load(file.read_text())["scrape_configs"]
    listen = compose()["services"]["pressure-server"]["environment"]["PRESSURE_HTTP"]
    assert job["static_configs"] == [{"targets": [listen.replace("http://0.0.0.0", "pressure-server")]}]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = COMPOSE.parent / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    prometheus = compose()["services"]["prometheus"]
    assert source["url"] == f"http://prometheus:{prometheus['ports'][0].rpartition(':')[2]}"
    (provider,) = yaml.safe_load((provisioning / "dashboards/pressure-server.yml").read_text())["providers"]
    targets = [mount.split(":")[1] for mount in compose()["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/pressure-server.json" in targets

"""The container without a container engine: the steps of the Dockerfile, in a directory of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import pytest
import redis

from tests.support.programs import TIMEOUT, wait_for
from tests.support.requirements import need, require

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "deploy/docker-compose.yml"
# pip's words where it reaches no registry.
NO_REGISTRY = re.compile(r"NewConnectionError|NameResolutionError|No matching distribution found")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile."""

    name: str
    flags: dict[str, str]
    value: str

    @property
    def words(self) -> list[str]:
        """The words of the exec form. Raises ValueError for the shell form."""
        words = json.loads(self.value)
        if not isinstance(words, list):
            raise ValueError(self.value)
        return words


@dataclass
class Stage:
    """FROM, and what follows it."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """The one in force."""
        return self.all(name)[-1]


def instructions_of(text: str) -> list[Instruction]:
    """A Dockerfile's instructions: comments dropped, continued lines joined, flags apart."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    whole = re.sub(r"\\[ \t]*\n", "", "\n".join(lines))
    return [instruction_of(line) for line in whole.splitlines()]


def instruction_of(line: str) -> Instruction:
    name, _, value = line.strip().partition(" ")
    flags: dict[str, str] = {}
    while found := re.match(r"--([a-z-]+)=(\S+)\s+", value.lstrip()):
        flags[found[1]] = found[2]
        value = value.lstrip()[found.end() :]
    return Instruction(name.upper(), flags, value.strip())


def stages_of(text: str) -> list[Stage]:
    stages: list[Stage] = []
    for instruction in instructions_of(text):
        if instruction.name == "FROM":
            base, *rest = instruction.value.split()
            stages.append(Stage(base, rest[1] if rest else ""))
        else:
            stages[-1].instructions.append(instruction)
    return stages


def ignore_rules(text: str) -> list[tuple[re.Pattern[str], bool]]:
    """Patterns of a .dockerignore, and whether what matches is left out."""
    rules = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith("#"):
            pattern = re.escape(line.strip().removeprefix("!").strip("/"))
            pattern = pattern.replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
            rules.append((re.compile(f"{pattern}(/.*)?"), not line.startswith("!")))
    return rules


def context_files() -> list[str]:
    """What `docker build` sends: the working tree as git would clone it, less what .dockerignore names."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listing, text=True).split("\0")
    rules = ignore_rules((ROOT / ".dockerignore").read_text())

    def left_out(name: str) -> bool:
        return next((out for pattern, out in reversed(rules) if pattern.fullmatch(name)), False)

    return [name for name in names if name and not left_out(name) and (ROOT / name).exists()]


class Machine:
    """A directory in place of a container's file system: absolute paths of the Dockerfile are below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.context = folder / "context"
        self.workdir = self.root
        self.environment = {"PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}
        kept = ("PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "NO_PROXY", "no_proxy", "LANG", "TMPDIR")
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith(kept)}
        for name in context_files():
            (self.context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.context / name)
        self._put_python()

    def _put_python(self) -> None:
        """`python`, as the base image has it: not the virtual environment that runs the tests."""
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        python = self.folder / "bin/python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(str(base))} "$@"\n')
        python.chmod(0o755)

    def mapped(self, text: str) -> str:
        """The text, with /src, /venv and /data below our root."""
        return re.sub(r"(?<![\w./])/(?=(?:src|venv|data)\b)", f"{self.root}/", text)

    def follow(self, instruction: Instruction) -> None:
        match instruction.name:
            case "WORKDIR":
                self.workdir = Path(self.mapped(instruction.value))
                self.workdir.mkdir(parents=True)
            case "ENV":
                for pair in shlex.split(instruction.value):
                    name, _, value = pair.partition("=")
                    self.environment[name] = self.mapped(Template(value).substitute(self.environment))
            case "COPY":
                *sources, target = instruction.value.split()
                self._copy(sources, target)
            case "RUN":
                self._run(self.mapped(instruction.value))

    def _copy(self, sources: list[str], target: str) -> None:
        """As COPY: of a directory its content, of files the files."""
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
        said = ended.stdout + ended.stderr
        if ended.returncode and NO_REGISTRY.search(said):
            require(False, f"what pip needs: {said[-500:]}")
        assert ended.returncode == 0, f"{command}: {said}"

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.workdir,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return stages_of((ROOT / "Dockerfile").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def machine(stages: list[Stage], tmp_path: Path) -> Machine:
    """The first stage done, and the variables of the second set."""
    built = Machine(tmp_path / "image")
    build, final = stages
    for instruction in build.instructions:
        built.follow(instruction)
    built.workdir = built.root
    for instruction in final.all("ENV"):
        built.follow(instruction)
    listen = built.environment["PRESSURE_LISTEN"]
    built.environment["PRESSURE_LISTEN"] = listen.replace(":4000", f":{free_port()}")
    return built


class Container:
    """The image's CMD, running on the machine."""

    def __init__(self, machine: Machine, final: Stage) -> None:
        self._machine = machine
        self._health = final.last("HEALTHCHECK").value.removeprefix("CMD ")
        self.log_file = machine.folder / "log"
        self.port = int(machine.environment["PRESSURE_LISTEN"].rpartition(":")[2])
        self.process = subprocess.Popen(
            final.last("CMD").words,
            cwd=machine.workdir,
            env=machine.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log_file.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def health(self) -> int:
        """The exit status of the image's HEALTHCHECK."""
        return self._machine.execute(*json.loads(self._health)).returncode

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


@contextlib.contextmanager
def running(machine: Machine, stages: list[Stage]) -> Iterator[Container]:
    """A container that is well; stopped at the end, if it still runs."""
    started = Container(machine, stages[-1])
    try:
        wait_for(lambda: started.health() == 0, "the health check to succeed")
        yield started
    finally:
        if started.process.poll() is None:
            started.stop(signal.SIGTERM)


def stop_signal(stages: list[Stage]) -> int:
    return signal.Signals[stages[-1].last("STOPSIGNAL").value].value


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_image_runs_and_is_well_and_stops_and_its_volume_keeps_what_is_queued(
    machine: Machine, stages: list[Stage]
) -> None:
    """One test, because it takes half a minute to build the image."""
    found = machine.execute("python", "-c", "import pressure_server as p; print(p.__file__)")
    assert found.stdout.startswith(f"{machine.root}/venv/lib/"), found.stdout + found.stderr
    with running(machine, stages) as container:
        log = container.log_file.read_text()
        assert f"listening on resp://0.0.0.0:{container.port}" in log, log
        with redis.Redis(port=container.port) as client:
            assert client.sadd("q", "a", "b") == 2
            assert client.spop("q") == b"a"
        assert container.stop(stop_signal(stages)) == 0, container.log_file.read_text()
        assert container.health() == 1
        assert f"data in {machine.root}/data\n" in container.log_file.read_text()
    with running(machine, stages) as again, redis.Redis(port=again.port) as client:
        assert client.spop("q") == b"b"


def test_two_stages_on_slim_bases(stages: list[Stage]) -> None:
    build, final = stages
    assert build.base == final.base
    assert re.fullmatch(r"python:3\.1[23]-slim", final.base)
    assert [(copy.flags, copy.value) for copy in final.all("COPY")] == [({"from": build.name}, "/venv /venv")]
    assert "pip" not in "".join(run.value for run in final.all("RUN"))


def test_the_server_is_not_root_and_owns_its_volume(stages: list[Stage]) -> None:
    final = stages[-1]
    user, group = final.last("USER").value.split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert final.last("VOLUME").value == "/data"
    made = "".join(run.value for run in final.all("RUN"))
    assert f"useradd --uid {user} --gid {group} " in made
    assert f"install --directory --owner={user} --group={group} --mode=700 /data" in made


def test_the_shell_understands_the_final_stage(stages: list[Stage]) -> None:
    for run in stages[-1].all("RUN"):
        subprocess.run(["/bin/sh", "-n", "-c", run.value], check=True, timeout=TIMEOUT)


def test_it_listens_everywhere_and_says_so(stages: list[Stage]) -> None:
    variables = shlex.split(" ".join(instruction.value for instruction in stages[-1].all("ENV")))
    assert "PRESSURE_LISTEN=resp://0.0.0.0:4000" in variables
    assert "PRESSURE_DATA_DIR=/data" in variables
    assert stages[-1].last("EXPOSE").value == "4000 11211"


def test_signals_reach_the_server(stages: list[Stage]) -> None:
    final = stages[-1]
    assert final.last("CMD").words == ["pressure-server", "serve"]
    assert final.last("STOPSIGNAL").value == "SIGTERM"
    assert not final.all("ENTRYPOINT")


def test_the_context_has_no_more_than_is_copied() -> None:
    tops = {name.partition("/")[0] for name in context_files()}
    assert tops == {"pyproject.toml", "README.md", "LICENSE", "pressure_server", "handlers"}


def test_how_a_dockerfile_is_read() -> None:
    text = 'FROM a AS b\n# c\nRUN x \\\n  # d\n  && y\nHEALTHCHECK --interval=1s --retries=2 CMD ["p", "q"]\n'
    (stage,) = stages_of(text)
    assert (stage.base, stage.name) == ("a", "b")
    assert stage.last("RUN").value == "x   && y"
    assert stage.last("HEALTHCHECK").flags == {"interval": "1s", "retries": "2"}
    with pytest.raises(ValueError, match="Expecting value"):
        _ = stage.last("RUN").words


def compose() -> dict[str, Any]:
    """The compose file, as Ruby reads it: Python has no YAML of its own."""
    script = "puts YAML.safe_load(File.read(ARGV[0])).to_json"
    ruby = [need("ruby", "ruby"), "-ryaml", "-rjson", "-e", script, str(COMPOSE)]
    read: dict[str, Any] = json.loads(subprocess.check_output(ruby, timeout=TIMEOUT))
    return read


@pytest.mark.clients
def test_the_compose_file_has_a_redis_beside_the_server(stages: list[Stage]) -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    server, backend = services["pressure-server"], services["redis"]
    assert (COMPOSE.parent / server["build"] / "Dockerfile").samefile(ROOT / "Dockerfile")
    assert server["environment"] == {"PRESSURE_BACKEND": "redis://redis:6379/0"}
    assert server["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert server["ports"] == ["127.0.0.1:4000:4000"]
    assert backend["command"][:3] == ["redis-server", "--appendonly", "yes"]
    assert backend["volumes"] == ["queues:/data"]
    assert "queues" in volumes
    assert backend["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    health = stages[-1].last("HEALTHCHECK").value
    assert ["CMD", *json.loads(health.removeprefix("CMD "))] == server["healthcheck"]["test"]

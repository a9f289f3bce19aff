"""The compiled variant: its build needs all it needs or leaves it, and no old code runs in silence."""

import ast
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import pressure_server
from pressure_server.compiled import is_compiled
from pressure_server.version import RELEASE
from tests.operators.compiling import SOURCE, compile_one_module
from tests.support.paths import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that setup.py reads, without extensions."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("pressure_server", "handlers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "*.sha256"))
    return tmp_path


def run(copy: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def extensions(copy: Path) -> list[Path]:
    return [*copy.glob("*.so"), *copy.glob("*/**/*.so")]


def test_the_installed_command_runs_in_any_folder_and_says_what_runs(tmp_path: Path) -> None:
    """An editable installation finds what is in packages only."""
    command = Path(sys.executable).with_name("pressure-server")
    told = subprocess.run(
        [command, "--version"], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    variant = "compiled" if is_compiled() else "interpreted"
    version = f"pressure-server, version {pressure_server.__version__} ({variant})\n"
    assert told.stdout == version, told.stderr


def test_a_source_that_has_changed_since_it_was_compiled_is_refused(copy: Path) -> None:
    def start() -> str:
        return run(copy, "-c", "import pressure_server").stderr

    source, manifest = copy / SOURCE, copy / "pressure_server/compiled.sha256"
    refusal = f"ImportError: {source} has changed since it was compiled: make compile, or make uncompile\n"
    text = source.read_bytes()
    manifest.write_text(f"{sha256(text).hexdigest()}  {SOURCE}\n")
    # Without its extension, the source runs.
    source.write_bytes(text + b"# changed\n")
    assert not start()
    source.with_suffix(EXTENSION_SUFFIXES[0]).touch()
    assert start().endswith(refusal)
    source.write_bytes(text)
    assert not start()
    source.unlink()
    assert start().endswith(refusal)
    source.write_bytes(text)
    manifest.unlink()
    assert start().endswith(refusal)


@pytest.mark.slow
def test_without_a_compiler_the_server_is_interpreted_unless_that_is_forbidden(copy: Path) -> None:
    compile_one_module(copy)
    build = ("setup.py", "--quiet", "build_ext", "--inplace")
    done = run(copy, *build, CC="/bin/false")
    assert done.returncode == 0
    assert "the server is not compiled, and will be interpreted: " in done.stderr
    assert not extensions(copy)
    version = run(copy, "-m", "pressure_server", "--version")
    # A build of the clone may have noted its commit.
    assert re.fullmatch(rf"pressure-server, version {RELEASE}(\+\w+)? \(interpreted\)\n", version.stdout)
    done = run(copy, *build, CC="/bin/false", PRESSURE_COMPILE="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("PRESSURE_COMPILE=1, but the server cannot be compiled: ")
    assert not extensions(copy)


def test_a_compilation_can_be_forbidden(copy: Path) -> None:
    assert run(copy, "setup.py", "--quiet", "build_ext", "--inplace", PRESSURE_COMPILE="0").returncode == 0
    assert not extensions(copy)


def compiled_sources() -> list[str]:
    listing = [sys.executable, "-c", "import setup; print(*setup.SOURCES)"]
    return subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def test_classes_that_are_not_compiled_derive_from_compiled_ones_only_if_these_allow_it() -> None:
    """If not, Python says so when it makes the first object, which may be in a rare case."""
    listed = compiled_sources()
    compiled = {
        (source.removesuffix(".py").replace("/", "."), node.name): node
        for source in listed
        for node in classes_of(ROOT / source)
    }
    derived = 0
    for package in ("pressure_server", "handlers"):
        for path in (ROOT / package).rglob("*.py"):
            if str(path.relative_to(ROOT)) in listed:
                continue
            tree = ast.parse(path.read_text())
            imported = {
                alias.asname or alias.name: (node.module, alias.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            for name in (ast.unparse(base) for node in classes_of(path) for base in node.bases):
                base = compiled.get(imported.get(name, ("", "")))  # type: ignore[arg-type] # a module may be None
                if base is not None:
                    derived += 1
                    allowed = "mypyc_attr(allow_interpreted_subclasses=True)"
                    assert allowed in map(ast.unparse, base.decorator_list), (path, name)
    assert derived >= 2


def test_no_compiled_coroutine_waits_while_it_handles_an_exception() -> None:
    """mypyc leaves the exception to whatever runs meanwhile: it would become the context of other errors."""
    for source in compiled_sources():
        for handler in ast.walk(ast.parse((ROOT / source).read_text())):
            body = handler.body if isinstance(handler, ast.ExceptHandler) else []
            body = handler.finalbody if isinstance(handler, ast.Try) else body
            assert not [one for part in body for one in ast.walk(part) if isinstance(one, ast.Await)], source


def test_no_compiled_command_that_is_a_coroutine_has_a_function_inside() -> None:
    """mypyc then gives it an environment that its end deletes, and LoneCommand's `close()` raises."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    for source in (one for one in compiled_sources() if one.startswith("handlers/")):
        for coroutine in ast.walk(ast.parse((ROOT / source).read_text())):
            if isinstance(coroutine, ast.AsyncFunctionDef):
                inside = [one for part in coroutine.body for one in ast.walk(part) if isinstance(one, inner)]
                assert not inside, (source, coroutine.name)


def test_compiled_code_names_a_cause_only_if_it_is_the_context_too() -> None:
    """mypyc drops the cause."""
    for source in compiled_sources():
        tree = ast.parse((ROOT / source).read_text())
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        same = {
            node
            for handler in handlers
            for node in ast.walk(handler)
            if isinstance(node, ast.Raise)
            and isinstance(node.cause, ast.Name)
            and node.cause.id == handler.name
        }
        causes = {node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.cause is not None}
        others = [node for node in causes - same if ast.unparse(node.cause or node) != "None"]
        assert not others, source


@pytest.mark.skipif(not is_compiled(), reason="the interpreted variant has no such code")
def test_no_compiled_function_takes_an_attribute_for_none() -> None:
    """mypyc does after `is not None` is false, also if a call has changed the attribute since."""
    function, values, found = "", dict[str, str](), []
    for line in (ROOT / "build/ops.txt").read_text().splitlines():
        if begin := re.match(r"def (\S+)\(", line):
            function, values = begin[1], {}
        elif unboxed := re.search(r"= unbox\(None, (\w+)\)", line):
            source = values.get(unboxed[1], "")
            found += [(function, source)] if re.fullmatch(r"(borrow )?\w+\.\w+", source) else []
        elif assigned := re.match(r"\s+(r\d+) = (.*)", line):
            values[assigned[1]] = assigned[2]
    assert function
    assert not found

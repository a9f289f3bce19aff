"""The compiled variant: mypyc makes extensions of the modules that each request passes.

Their `.py` files are what people read and debug, and all that is written: mypyc takes their annotations.
PRESSURE_COMPILE=1 requires the compilation, 0 forbids it. If it is not set, a plain installation tries it,
and an editable one does not. All modules are compiled, or none: see docs/internals/compiled.md.
"""

from __future__ import annotations

import os
import runpy
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.build_meta import *  # noqa: F403 # this file is the build backend, too
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# Folders, and the modules in each.
MODULES = """
    handlers/beanstalk/ parser replies session
    handlers/beanstalk/commands/ reserving tubes
    handlers/memcached/ arguments meta parser session
    handlers/memcached/commands/ encoders items
    handlers/resp/ options parser session
    handlers/resp/commands/ encoders plans
    pressure_server/ words
    pressure_server/backend/ link requests resp
    pressure_server/lua/ layout
    pressure_server/net/ client clients connection disconnects line_parser memory outbox
    pressure_server/net/ pipeline reserved_jobs session strangers
    pressure_server/queues/ shard
    pressure_server/queues/calls/ call courier records
    pressure_server/queues/lanes/ lane
    pressure_server/queues/operations/ batch block_reply jobs operation options owners runs verbs wait
"""
SOURCES = [
    f"{folder}{name}.py" for folder, *names in map(str.split, MODULES.strip().splitlines()) for name in names
]
# What pressure_server/compiled.py reads: a line for each source, as sha256sum prints it.
_MANIFEST = Path("pressure_server/compiled.sha256")
_WISH = os.environ.get("PRESSURE_COMPILE", "")


def _fail(why: object) -> None:
    """End if the compilation is required; otherwise the server will be interpreted, and its log says so."""
    if _WISH == "1":
        sys.exit(f"PRESSURE_COMPILE=1, but the server cannot be compiled: {why}")
    print(f"the server is not compiled, and will be interpreted: {why}", file=sys.stderr)


def _extensions() -> list[Extension]:
    """Return the extensions to build. Return none if nothing is to be compiled."""
    if _WISH == "0" or {"build_ext", "bdist_wheel", "editable_wheel"}.isdisjoint(sys.argv):
        return []
    if "editable_wheel" in sys.argv:
        if _WISH == "1":
            _fail("an editable installation is not compiled; use make compile after it")
        return []
    try:
        from mypyc.build import mypycify  # only the compilation needs it

        # The library is in the package: only there does an editable installation find it.
        opt_level = os.environ.get("MYPYC_OPT_LEVEL", "3")
        return mypycify(SOURCES, group_name="pressure_server.compiled", opt_level=opt_level)
    except (ImportError, SystemExit) as error:
        _fail(error or "mypyc has printed why")
        return []


class BuildAll(build_ext):
    """Builds all extensions, or none; then notes of which sources they are."""

    def run(self) -> None:
        """See build_ext."""
        folder = Path() if self.inplace else Path(self.build_lib)
        (folder / _MANIFEST).unlink(missing_ok=True)
        for pattern in ("pressure_server/**/*.so", "handlers/**/*.so"):
            for built in folder.glob(pattern):
                built.unlink()
        if not self.extensions:
            return
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            self.extensions.clear()
            _fail(error)
            return
        lines = [f"{sha256(Path(source).read_bytes()).hexdigest()}  {source}\n" for source in SOURCES]
        (folder / _MANIFEST).write_text("".join(lines))


def get_requires_for_build_wheel(_config_settings: Any = None) -> list[str]:
    """Return what the compilation needs: mypy, and the types of all that the server imports."""
    if _WISH == "0":
        return []
    return ["mypy>=2.4,<3", *tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]]


def _version() -> str:
    """Return the version. Note for the package of which commit it is; in an sdist, that is noted already."""
    version = runpy.run_path("pressure_server/version.py")
    if Path(".git").exists():
        Path("pressure_server/commit.txt").write_text(version["commit"]())
    told: str = version["VERSION"]
    return told


if __name__ == "__main__":
    setup(version=_version(), ext_modules=_extensions(), cmdclass={"build_ext": BuildAll})

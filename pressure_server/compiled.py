"""The compiled variant of the server: tell whether it runs, and refuse it if its sources have changed."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_attributes: Any) -> Any:
        """Return a decorator that leaves a class as it is: mypyc reads it, and nothing runs it."""
        return lambda decorated: decorated


_FOLDER = Path(__file__).parent.parent
# What setup.py has written, if it has compiled: for each module the digest of its source, and that source.
_MANIFEST = Path(__file__).with_name("compiled.sha256")
# One of the modules: all are compiled, or none.
_SAMPLE = Path(__file__).with_name("words.py")


def is_compiled() -> bool:
    """Return whether the compiled variant runs."""
    return any(_SAMPLE.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)


def variant() -> str:
    """Return what people are told of the variant that runs."""
    return "compiled" if is_compiled() else "interpreted"


def check_sources() -> None:
    """Raise ImportError if a source has changed since it was compiled: Python would run the old one."""
    if not is_compiled():
        return
    from hashlib import sha256  # most programs of a clone do not need it

    lines = _MANIFEST.read_text().splitlines() if _MANIFEST.exists() else [f"  {_SAMPLE}"]
    for line in lines:
        digest, source = line.split("  ")
        path = _FOLDER / source
        if not path.exists() or sha256(path.read_bytes()).hexdigest() != digest:
            raise ImportError(f"{path} has changed since it was compiled: make compile, or make uncompile")

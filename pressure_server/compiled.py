"""The compiled variant of the server (setup.py): whether it runs, and whether it is that of these sources."""

from __future__ import annotations

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


def is_compiled() -> bool:
    """Return whether the compiled variant runs."""
    return bool(_compiled())


def variant() -> str:
    """Return what people are told of the variant that runs."""
    return "compiled" if is_compiled() else "interpreted"


def check_sources() -> None:
    """Raise ImportError if a source has changed since it was compiled: Python would run the old one."""
    for source, digest in _compiled():
        from hashlib import sha256  # few programs need it: most are interpreted

        if sha256(source.read_bytes()).hexdigest() != digest:
            raise ImportError(f"{source} has changed since it was compiled: make compile, or make uncompile")


def _compiled() -> list[tuple[Path, str]]:
    """Return the sources that have extensions beside them, with the digests that they had then."""
    if not _MANIFEST.exists():
        return []
    lines = [line.split("  ") for line in _MANIFEST.read_text().splitlines()]
    sources = [(_FOLDER / source, digest) for digest, source in lines]
    return [
        (source, digest)
        for source, digest in sources
        if any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)
    ]

"""The version: the release, and the commit of sources that are not the release's own."""

import subprocess
from pathlib import Path
from typing import Final

RELEASE: Final = "1.0.0rc1"
_FOLDER = Path(__file__).parent
# setup.py and the Dockerfile write it, because a package has no clone to ask. Empty: the release.
_COMMIT = _FOLDER / "commit.txt"
_ASK = ("git", "-c", "log.showSignature=false", "log", "-1", "--format=%H %D")


def commit() -> str:
    """Return the commit in eight digits. Return "" if it is the release, "unknown" if git does not answer."""
    if not (_FOLDER.parent / ".git").exists():
        return _COMMIT.read_text().strip() if _COMMIT.exists() else ""
    try:
        told = subprocess.run(  # noqa: S603 # a constant
            _ASK, cwd=_FOLDER, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    digits, _, names = told.stdout.strip().partition(" ")
    return "" if f"tag: v{RELEASE}" in names.split(", ") else digits[:8]


VERSION: Final = "+".join(filter(None, (RELEASE, commit())))

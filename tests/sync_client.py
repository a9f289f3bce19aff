"""The synchronous Python clients, generated from the asyncio ones. `python -m tests.sync_client` writes them.

With `--check`, it writes nothing, and fails if a file is not what its source gives.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

SOURCE, GENERATED = ROOT / "pressure_server/client/aio", ROOT / "pressure_server/client/sync"
_HEADER = "# Generated from ../aio/{name} by `make sync-client`. Edit that file, not this one.\n"
# Each pattern and its replacement, in code and docstrings. Larger differences are in the *_primitives.py.
_RULES = (
    (r'\n *Cancellation: (?:.+\n)+?(?= *"""|\n)', ""),  # in a docstring: threads are not cancelled
    (r"\bPending\[(\w+)\]", r"\1"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
    (r"\baio\b", "sync"),
    (r"\basync_primitives\b", "sync_primitives"),
    (r"\basyncio\b", "synchronous"),
    (r"\bTask(?=s?\b)", "Thread"),
    (r"\btask(?=s?\b)", "thread"),
)


def generated(path: Path) -> str:
    """Return the synchronous module for an asyncio one."""
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    text = _HEADER.format(name=path.name) + text
    # Without this setting, ruff sorts an import of a module that is yet to be written as a third party's.
    known = 'lint.isort.known-first-party=["pressure_server"]'
    for command in (["check", "--fix", "--select=F401,I", f"--config={known}"], ["format"]):
        name = f"--stdin-filename={GENERATED / path.name}"
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", name, "-"],
            stdout=subprocess.PIPE, input=text, text=True, check=True,
        ).stdout  # fmt: skip
    return text


def main(*, is_check: bool) -> int:
    """Write the modules, or check them. Return the exit status."""
    texts = {GENERATED / path.name: generated(path) for path in sorted(SOURCE.glob("*.py"))}
    present = {path: path.read_text(encoding="utf-8") for path in sorted(GENERATED.glob("*.py"))}
    stale = [path for path in texts | present if texts.get(path) != present.get(path)]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)} is stale: run make sync-client", file=sys.stderr)
        elif path in texts:
            GENERATED.mkdir(exist_ok=True)
            path.write_text(texts[path], encoding="utf-8")
        else:
            path.unlink()
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(is_check="--check" in sys.argv))

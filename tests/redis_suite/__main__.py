"""`python -m tests.redis_suite`: run Redis's own tests of lists and sets, and compare with expected.tsv.

The exit status is 0 if those tests pass that should, and no others; otherwise 1.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.redis_suite import suite
from tests.redis_suite.expectations import PASSES, REASONS, Test, expected
from tests.support.programs import Server, Valkey


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    if shutil.which("tclsh") is None:
        print("not installed: tclsh, of the Debian package tcl", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="redis-suite-") as name:
        folder = Path(name)
        source: Path | None = arguments.source
        if source is None:
            (folder / "source").mkdir()
            source = suite.fetch(folder / "source")
        if arguments.port:
            statuses, texts = suite.run(source, folder, arguments.port, arguments.only)
        else:
            statuses, texts = _run_on_new_server(source, folder, arguments.only)
        if arguments.output:
            shutil.copy(folder / "output", arguments.output)
    return _report(statuses, texts, is_all=not arguments.only)


def _run_on_new_server(
    source: Path, folder: Path, only: list[str]
) -> tuple[dict[Test, str], dict[Test, str]]:
    (folder / "backend").mkdir()
    backend = Valkey(folder / "backend")
    try:
        server = Server(folder / "log", "--backend", backend.url)
        try:
            return suite.run(source, folder, server.port, only)
        finally:
            server.stop()
    finally:
        backend.stop()


def _report(statuses: dict[Test, str], texts: dict[Test, str], *, is_all: bool) -> int:
    table = expected()
    wrong: list[str] = []
    for test, word in table.items():
        status = statuses.get(test, "missing")
        if status == "missing" and not is_all:
            continue
        if word == PASSES and status != "passed":
            wrong.append(f"should pass: {test}\n  {status}: {texts.get(test, '')}")
        elif word != PASSES and status in ("passed", "missing"):
            wrong.append(f"{status}: {test}\n  The table says: {REASONS[word]}")
    wrong += [f"not in the table: {test}: {status}" for test, status in statuses.items() if test not in table]
    for unit in suite.UNITS:
        counts = Counter(status for test, status in statuses.items() if test.unit == unit)
        print(f"{unit:18} {sum(counts.values()):4} tests: {counts['passed']:4} passed, "
              f"{counts['failed']:4} failed, {counts['skipped']:4} skipped")  # fmt: skip
    reasons = Counter(table[test] for test in statuses if test in table)
    for word, reason in REASONS.items():
        print(f"{reasons[word]:4}  {reason}")
    print("", *wrong, sep="\n")
    print(f"{len(wrong)} results differ from the table" if wrong else "all results are those of the table")
    return 1 if wrong or not statuses else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.redis_suite", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--source", type=Path, help="folder of Redis's source; default: download Debian's")
    parser.add_argument("--port", type=int, help="port of a server that is running; default: start one")
    parser.add_argument("--only", action="append", default=[], metavar="TEST", help="run only these tests")
    parser.add_argument("--output", type=Path, help="file for a copy of what the suite prints")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.chaos`: break everything for a while, and print what came of the messages.

Exit status 0 where nothing was lost and every duplicate has a cause; else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import plan, report
from tests.chaos.run import Settings, run

# Seconds. Shorter than the server's own, so that faults that last longer than these come often; but none that
# breaks a connection only lasts so long that the proxy is taken for dead.
TIMEOUTS = plan.Timeouts(proxy=8.0, backend=1.5, grace=2.0)


def main() -> int:
    """The exit status."""
    arguments = _arguments()
    kinds = plan.kinds(only_connections=arguments.only == "connections")
    if arguments.only == "hang-ups":
        kinds = [plan.CLIENTS_HANG_UP]
    timeouts = plan.Timeouts(arguments.proxy_timeout, arguments.backend_timeout, arguments.backend_grace)
    settings = Settings(
        messages=arguments.messages,
        faults=plan.make(kinds, arguments.faults, arguments.proxies, timeouts, arguments.seed),
        proxies=arguments.proxies,
        timeouts=timeouts,
        folder=arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-")),
        seed=arguments.seed,
    )
    print(f"seed {arguments.seed}, logs and data in {settings.folder}", flush=True)
    outcome = asyncio.run(run(settings, _Progress().say))
    print()
    for line in report.lines(outcome):
        print(line)
    failures = report.failures(outcome)
    print(f"\nfailed: {', '.join(failures)}" if failures else "\nnothing lost, every duplicate has a cause")
    return 1 if failures else 0


class _Progress:
    """Prints what it is told, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=50_000, help="acknowledged, at least")
    parser.add_argument("--faults", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="decides which, in which order, and when")
    parser.add_argument("--proxies", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument(
        "--only",
        choices=("connections", "hang-ups"),
        help="break connections and no process; or only let clients hang up in stalls",
    )
    for name in ("proxy-timeout", "backend-timeout", "backend-grace"):
        default = getattr(TIMEOUTS, name.removesuffix("-timeout").removeprefix("backend-"))
        parser.add_argument(f"--{name}", type=float, default=default, help="the server's option")
    parser.add_argument("--folder", type=Path, help="for logs and data, to be made; else a temporary one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.chaos`: break everything around the servers, and print a report.

The exit status is 0 if no message was lost and every duplicate has a cause; otherwise 1.
"""

import argparse
import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.chaos import plan, report
from tests.chaos.backends import ClusterBackend, MakeBackend, SentinelBackend, SingleBackend
from tests.chaos.run import Settings, run
from tests.support.nodes import Engine

# In seconds. Shorter than the server's defaults, so that faults often last longer than a timeout. A fault of
# a connection must be shorter than the proxy's timeout, or the proxy is taken for dead.
TIMEOUTS = plan.Timeouts(proxy=8.0, backend=1.5, grace=2.0)
# The server's default for a backend that fails over: longer than that takes.
_LONG_GRACE = 20.0
# By `appendfsync`, how many seconds of changes a power cut may lose (docs/reliability.md, Durability).
_MAY_LOSE = {"always": 0.0, "everysec": 2.0, "no": math.inf}
# The same if a replica takes over, and the servers have not waited for it: it lags behind by less than this.
_LAG = 1.0


def main() -> int:
    """Return the exit status."""
    arguments = _arguments()
    kinds: Sequence[plan.Kind] = plan.KINDS
    common = {"engine": Engine(arguments.engine), "durability": arguments.durability}
    backend: MakeBackend = partial(SingleBackend, **common, appendfsync=arguments.appendfsync)
    may_lose = _MAY_LOSE[arguments.appendfsync]
    if arguments.cluster or arguments.sentinel:
        may_lose = _LAG if arguments.durability == "none" else 0.0
    if arguments.cluster:
        kinds, backend = plan.KINDS_OF_CLUSTER, partial(ClusterBackend, **common)
    elif arguments.sentinel:
        kinds, backend = plan.KINDS_OF_SENTINEL, partial(SentinelBackend, **common)
    if arguments.workers > 1:
        kinds = [*kinds, *plan.KINDS_OF_WORKERS]
    if arguments.only:
        kinds = [kind for kind in kinds if plan.ONLY[arguments.only](kind)]
        if not kinds:
            sys.exit(f"this backend has no faults for --only {arguments.only}")
    stays = plan.STAYING[arguments.stays] if arguments.stays else None
    if stays is not None:
        kinds = [kind for kind in kinds if kind.target is not stays.target]
    grace = arguments.backend_grace or (
        _LONG_GRACE if arguments.cluster or arguments.sentinel else TIMEOUTS.grace
    )
    timeouts = plan.Timeouts(arguments.proxy_timeout, arguments.backend_timeout, grace)
    settings = Settings(
        messages=arguments.messages,
        faults=plan.make(kinds, arguments.faults, arguments.proxies, timeouts, arguments.seed),
        proxies=arguments.proxies,
        timeouts=timeouts,
        folder=arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-")),
        seed=arguments.seed,
        backend=backend,
        workers=arguments.workers,
        stays=stays,
        may_lose=may_lose,
    )
    print(f"seed {arguments.seed}, logs and data in {settings.folder}", flush=True)
    began = time.monotonic()
    outcome = asyncio.run(
        run(settings, lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True))
    )
    print("", *report.lines(outcome), sep="\n")
    failures = report.failures(outcome, all_reached=arguments.reached)
    kept = "nothing lost" if not settings.may_lose else "nothing lost that may not be lost"
    print(f"\nfailed: {', '.join(failures)}" if failures else f"\n{kept}, every duplicate has a cause")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=50_000, help="acknowledged messages, at least")
    parser.add_argument("--faults", type=int, default=50, help="number of faults")
    parser.add_argument("--seed", type=int, default=1, help="decides kinds, order and times of the faults")
    parser.add_argument("--proxies", type=int, choices=(1, 2, 3), default=2, help="number of servers")
    parser.add_argument(
        "--only",
        choices=list(plan.ONLY),
        help="break connections and no process; or only let clients hang up in stalls, cut the power of "
        "the backend, or break the network between nodes",
    )
    parser.add_argument(
        "--engine",
        choices=[engine.value for engine in Engine],
        default=Engine.REDIS.value,
        help="the backend: Debian's Redis, or the embedded Valkey",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="three masters with a replica each: slots move, replicas take over, masters and servers die, "
        "and the network breaks; as root",
    )
    parser.add_argument(
        "--sentinel",
        action="store_true",
        help="a master, a replica and Sentinels, whose network breaks; as root",
    )
    parser.add_argument(
        "--durability",
        choices=("none", "fsync", "replica:1"),
        help="the servers' option; by default none for one backend, and replica:1 for several nodes",
    )
    parser.add_argument(
        "--appendfsync",
        choices=list(_MAY_LOSE),
        default="always",
        help="the option of one backend: with another, power cuts lose what they may",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of each server; with several, some die and hang"
    )
    parser.add_argument(
        "--stays",
        choices=list(plan.STAYING),
        help="a fault that lasts until all messages are put; others break something else",
    )
    parser.add_argument(
        "--reached", action="store_true", help="fail if a rare state is not reached; for long runs"
    )
    for option, default in (
        ("--proxy-timeout", TIMEOUTS.proxy),
        ("--backend-timeout", TIMEOUTS.backend),
        ("--backend-grace", None),
    ):
        parser.add_argument(option, type=float, default=default, help="the server's option, in seconds")
    parser.add_argument("--folder", type=Path, help="new folder for logs and data; default: a temporary one")
    arguments = parser.parse_args()
    is_single = not (arguments.cluster or arguments.sentinel)
    arguments.durability = arguments.durability or ("none" if is_single else "replica:1")
    if arguments.durability == ("replica:1" if is_single else "fsync"):
        parser.error("--durability fsync is for one backend, and replica:1 for several nodes")
    if arguments.durability == "none" and not is_single and arguments.only != "power-cuts":
        parser.error("with several nodes, --durability none is for --only power-cuts")
    if arguments.appendfsync != "always" and not (is_single and arguments.durability == "none"):
        parser.error("--appendfsync is for one backend, and servers with --durability none")
    return arguments


if __name__ == "__main__":
    sys.exit(main())

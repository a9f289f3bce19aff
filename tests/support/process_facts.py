"""A program that prints, as JSON, what a process has at its start: a forked one must have the same."""

import asyncio
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

_SIGNALS_AND_THREADS = ("SigBlk", "SigIgn", "SigCgt", "Threads")


def _main() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    files = {link.name: os.path.realpath(link) for link in Path("/proc/self/fd").iterdir() if link.exists()}
    facts = {
        "command": [sys.executable, sys.argv, sys.orig_argv],
        "module": [__name__, __package__, sys.modules["__main__"].__dict__ is globals()],
        "import path": sys.path,
        "interpreter": [str(sys.flags), sys.warnoptions],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "files": files,
        "streams": [
            (s.encoding, s.errors, s.line_buffering, s.isatty()) for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)],
        "umask": os.umask(0),
        "status": {name: status[name] for name in _SIGNALS_AND_THREADS},
        "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "main thread": threading.current_thread() is threading.main_thread(),
        "event loops": type(asyncio.get_event_loop_policy()).__name__,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    _main()

"""A process that has imported what servers import, and forks itself for each program that a test starts.

A new process needs 0.3 seconds of processor time for its imports. `forked.py` starts the fork server as
`python -m tests.support.fork_server SOCKET`, and sends requests. The library's `multiprocessing.forkserver`
ends its processes without Python's shutdown, in which servers log what they have forgotten.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NamedTuple

# What all servers import, and native clients. More would make each process's end longer.
_PRELOADED = (
    "handlers.beanstalk",
    "handlers.memcached",
    "handlers.resp",
    "pressure_server.app.cli",
    "tests.support.native",
    "uvloop",
)
_MAX_REQUEST = 100_000


class Start(NamedTuple):
    """A program to run: `python -m MODULE ARGUMENTS` in a folder, with this environment."""

    module: str
    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]


class _Running(NamedTuple):
    """A forked process, and the socket on which its pid and its exit status are sent."""

    pid: int
    reports: socket.socket


def _main() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    # After a fork, a thread or an event loop of this process would be missing.
    assert len(list(Path("/proc/self/task").iterdir())) == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # the collector of a forked process does not copy the pages of these objects
    start = _fork_for_each(socket.socket(fileno=int(sys.argv[1])))
    if start is not None:
        _run(start)


def _fork_for_each(requests: socket.socket) -> Start | None:
    """Fork for each request. Return in a forked process, or without a request when there are no more."""
    running: dict[int, _Running] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != requests.fileno():
                poll.unregister(ready)
                _report_end(ready, running.pop(ready))
                continue
            request, files, *_ = socket.recv_fds(requests, _MAX_REQUEST, 3)
            if not request:
                _end(running)
                return None
            output, errors, reports = files
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.dup2(output, 1)
                os.dup2(errors, 2)
                for number in (*files, *running):
                    os.close(number)
                for other in running.values():
                    other.reports.close()
                requests.close()
                return Start(*json.loads(request))
            os.close(output)
            os.close(errors)
            process = os.pidfd_open(pid)
            running[process] = _Running(pid, socket.socket(fileno=reports))
            poll.register(process, select.POLLIN)
            running[process].reports.send(b"%d" % pid)


def _report_end(process: int, ended: _Running) -> None:
    _, status = os.waitpid(ended.pid, 0)
    os.close(process)
    with ended.reports:
        ended.reports.send(b"%d" % os.waitstatus_to_exitcode(status))


def _end(running: dict[int, _Running]) -> None:
    """End what a killed test worker has left, and not with SIGKILL, so that embedded backends end too."""
    for process in running.values():
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)


def _run(start: Start) -> None:
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[0] = start.folder
    sys.argv[1:] = start.arguments
    sys.orig_argv[:] = [sys.executable, "-m", start.module, *start.arguments]
    runpy.run_module(start.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()

"""Count the server's functions that one command calls.

    python -m tests.path [--each]

The commands are a SADD and a SPOP of one client, on a queue in use. The stages end when the call to the
backend is written, and when the reply is written. With --each, list every function in its order.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from pressure_server.app import cli
from pressure_server.app.server import Server
from tests.support.paths import ROOT
from tests.support.programs import Valkey
from tests.support.waiters import Waiter

_HOME = ROOT
_SOURCES = (str(_HOME / "pressure_server"), str(_HOME / "handlers"))
_STAGES = ("to the backend", "back to the client", "after the reply")
# The functions that end the first and the second stage.
_WRITERS = (
    "pressure_server/backend/resp.py BackendConnection.send_packed",
    "pressure_server/net/outbox.py Outbox.write",
)
# Seconds after which the server has finished a command.
_PAUSE = 0.1


class Recorder:
    """The server's functions that are called in one thread between `begin` and `end`, by stage."""

    def __init__(self) -> None:
        self.stages: list[list[str]] = []

    def begin(self) -> None:
        """Start recording this thread."""
        self.stages = [[]]
        sys.setprofile(self._record)

    def end(self) -> None:
        """Stop recording."""
        sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_SOURCES):
            module = str(Path(frame.f_code.co_filename).relative_to(_HOME))
            self.stages[-1].append(f"{module} {frame.f_code.co_qualname}")
            if self.stages[-1][-1] == dict(enumerate(_WRITERS, 1)).get(len(self.stages)):
                self.stages.append([])


def _measure(port: int, loop: asyncio.AbstractEventLoop, *, each: bool) -> None:
    recorder, pause = Recorder(), threading.Event()

    def on_loop(do: Callable[[], None]) -> None:
        done = threading.Event()
        loop.call_soon_threadsafe(do)
        loop.call_soon_threadsafe(done.set)
        done.wait()

    with Waiter(port) as waiter:
        waiter("SADD", "q", *range(20))
        for number in range(10):
            waiter("SADD", "q", f"one {number}")
            waiter("SPOP", "q")
        for command in (("SADD", "q", "a"), ("SPOP", "q")):
            pause.wait(_PAUSE)
            on_loop(recorder.begin)
            waiter(*command)
            pause.wait(_PAUSE)
            on_loop(recorder.end)
            calls = [call for stage in recorder.stages[:2] for call in stage]
            modules = {call.split()[0] for call in calls}
            print(f"{' '.join(command)}: {len(calls)} calls in {len(modules)} modules")
            for name, stage in zip(_STAGES, recorder.stages, strict=False):
                print(f"  {name}: {len(stage)}")
                for call in stage if each else ():
                    print(f"    {call}")


def main() -> None:
    """Run a server in this thread, and a client in another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", action="store_true", help="list every call")
    each = parser.parse_args().each
    announce = Server._announce

    def announced(server: Server) -> None:
        announce(server)
        loop, port = asyncio.get_running_loop(), server._context.listening[0].port

        def play() -> None:
            try:
                _measure(port, loop, each=each)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=play).start()

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Server, "_announce", announced):
        valkey = Valkey(Path(folder))
        sys.argv = ["pressure-server", "serve", "--listen", "resp://127.0.0.1:0", "--backend", valkey.url]
        try:
            cli.run()
        finally:
            valkey.stop()


if __name__ == "__main__":
    main()

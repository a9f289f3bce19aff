"""`pressure-server demo`: clients of each protocol put and take messages of a running server."""

import re
import signal
import subprocess
import sys

import pytest

from tests.support.programs import TIMEOUT, Client, Server, StartServer, Valkey, run_command, wait_for

_LISTEN = ("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0")
_PROTOCOLS = ("resp", "memcached", "beanstalk")


@pytest.fixture
def listening(start_server: StartServer, backend: Valkey) -> Server:
    return start_server("--backend", backend.url, *_LISTEN)


def _urls(server: Server) -> list[str]:
    return [
        word for name in _PROTOCOLS for word in ("--listen", f"{name}://127.0.0.1:{server.port_of(name)}")
    ]


def _counts(output: str) -> dict[str, tuple[int, int]]:
    """Return by the name of each queue how many messages were put, and how many were taken."""
    found = re.findall(r": (\d+) messages put into (\S+), (\d+) taken$", output, re.MULTILINE)
    return {queue: (int(put), int(taken)) for put, queue, taken in found}


def test_all_messages_are_taken_in_the_end_and_no_others(listening: Server, direct: Client) -> None:
    with listening.client() as client:
        client.rpush("default", "a job of a tube that beanstalk clients watch unasked")
    ended = run_command("demo", "--time", "1s", *_urls(listening))
    assert (ended.returncode, ended.stderr) == (0, "")
    counts = _counts(ended.stdout)
    assert list(counts) == [f"demo-{name}" for name in _PROTOCOLS]
    for queue, (put, taken) in counts.items():
        assert 0 < put == taken
        assert int(direct.get(f"__pressure__:{queue}:stats:produced_messages")) == put
    with listening.client() as client:
        assert client.llen("default") == 1


def test_a_demo_can_be_interrupted(listening: Server) -> None:
    def heed_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell may start the tests without it

    command = [sys.executable, "-m", "pressure_server", "demo", *_urls(listening)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process,
        listening.client() as client,
    ):
        wait_for(lambda: all(client.exists(f"demo-{name}") for name in _PROTOCOLS), "messages")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert all(0 < put == taken for put, taken in _counts(output).values())


def test_a_demo_names_the_listener_that_refuses_it(listening: Server, start_server: StartServer) -> None:
    listening.stop()
    *_, last = _urls(listening)
    ended = run_command("demo", "--listen", last)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"pressure-server: {last}: Connection refused: no server listens there; start one, or name its "
        "address by --listen\n"
    )


def test_listeners_without_queues_are_an_error(start_server: StartServer, backend: Valkey) -> None:
    url = "memcached://127.0.0.1:{}?mode=kv"
    server = start_server("--backend", backend.url, "--listen", url.format(0))
    ended = run_command("demo", "--listen", url.format(server.port_of("memcached")))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "pressure-server: no --listen address has queues\n"

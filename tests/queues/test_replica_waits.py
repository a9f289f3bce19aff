"""WAIT: how many replicas of the backend have what a client has put, asked over RESP."""

import signal

import pytest

from tests.support.programs import Replicated, Server, StartServer, StartValkey, start_replicated
from tests.support.waiters import Waiter


@pytest.fixture
def replicated(start_valkey: StartValkey) -> Replicated:
    return start_replicated(start_valkey)


@pytest.fixture
def on_replicas(replicated: Replicated, start_server: StartServer) -> Server:
    return start_server("--backend", replicated.main.url)


def test_a_put_is_on_the_replica_after_wait(on_replicas: Server, replicated: Replicated) -> None:
    with Waiter(on_replicas.port) as client, replicated.replica.client() as replica:
        for number in range(20):
            assert client("SADD", "q", str(number)) == 1
            assert client("WAIT", "1", "0") == 1
            assert replica.llen("__pressure__:q") == number + 1


def test_wait_follows_the_puts_of_its_pipeline(on_replicas: Server, replicated: Replicated) -> None:
    with on_replicas.client() as client, replicated.replica.client() as replica:
        pipeline = client.pipeline(transaction=False)
        for number in range(100):
            pipeline.rpush(f"q{number}", "message")
        pipeline.wait(1, 0)
        assert pipeline.execute()[-1] == 1
        assert len(replica.keys("__pressure__:q*:bound")) == 100


def test_a_replica_that_does_not_answer_is_not_counted(on_replicas: Server, replicated: Replicated) -> None:
    replicated.replica.process.send_signal(signal.SIGSTOP)
    with Waiter(on_replicas.port) as client, Waiter(on_replicas.port) as patient:
        client("SADD", "q", "message")
        patient.send("WAIT", "1", "0")
        assert client("WAIT", "1", "50") == 0
        assert client("WAIT", "0", "0") == 0
        replicated.replica.process.send_signal(signal.SIGCONT)
        assert patient.reply() == 1


def test_a_transaction_does_not_wait(on_replicas: Server, replicated: Replicated) -> None:
    replicated.replica.process.send_signal(signal.SIGSTOP)
    with on_replicas.client() as client:
        pipeline = client.pipeline()
        pipeline.rpush("q", "message")
        pipeline.wait(1, 0)
        assert pipeline.execute() == [1, 0]
    replicated.replica.process.send_signal(signal.SIGCONT)

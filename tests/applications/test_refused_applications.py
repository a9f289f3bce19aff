"""Applications of PyPI and npm that must not be used with the server: how they fail."""

import pytest

from tests.applications.conftest import SetUp
from tests.support.installed_applications import SCRIPTS, in_node, in_python, refused_by
from tests.support.programs import Server, wait_for

REFUSED = {
    "Celery": in_python(
        "celery", "celery_app", "celery", "--app", "celery_app", "worker", "--concurrency", "1"
    ),
    "huey": in_python("huey.redis.app", "huey_app", "huey_consumer", "huey_app.huey"),
    "kombu": in_python("mails", "kombu_app", "python", "-m", "kombu_app", "work"),
    "pyres": in_python(
        "resque:queue:jobs", "pyres_app",
        "pyres_worker", "--host", "127.0.0.1", "--port", "$QUEUE_PORT", "jobs",
    ),
    "rq": in_python("rq:queue:default", "rq_app", "rq", "worker", "--url", "redis://127.0.0.1:$QUEUE_PORT"),
    "dramatiq": in_python(
        "dramatiq:default", "dramatiq_app", "dramatiq", "dramatiq_app", "--processes", "1", "--threads", "1"
    ),
    "SAQ": in_python("saq:default:queued", "saq_app", "saq", "saq_app.settings", environment="python-older"),
    "arq": in_python("arq:queue", "arq_app", "arq", "arq_app.WorkerSettings", environment="python-older"),
    "Bull": in_node("bull:jobs:wait", "bull_app.js"),
    "BullMQ": in_node("bull:jobs:wait", "bullmq_app.js"),
    "bee-queue": in_node("bq:jobs:waiting", "bee_queue_app.js"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_application_works_with_redis(name: str, set_up_with_redis: SetUp) -> None:
    # Otherwise the other tests would not show that the server is what makes it fail.
    stand = set_up_with_redis(REFUSED[name])
    stand.put("a", "b")
    with stand.start_worker():
        stand.wait_until_done("ab")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("rq", "HSET"),
        ("dramatiq", "EVALSHA"),
        ("SAQ", "EVALSHA"),
        ("arq", "PSETEX"),
        ("Bull", "EVAL"),
        ("BullMQ", "EVAL"),
        ("bee-queue", "SUBSCRIBE"),
    ],
)
def test_a_put_fails_and_puts_nothing(name: str, command: str, set_up: SetUp, own_server: Server) -> None:
    stand = set_up(REFUSED[name])
    ended = stand.try_to_put("a")
    assert ended.returncode == 1
    assert f"UNSUPPORTED '{command}' is not a queue command" in ended.stdout
    assert stand.queued == 0
    assert command in refused_by(own_server)


@pytest.mark.parametrize(
    ("name", "command"),
    [("rq", "HSET"), ("arq", "ZRANGEBYSCORE"), ("Bull", "SUBSCRIBE"), ("bee-queue", "SUBSCRIBE")],
)
def test_a_worker_ends_at_its_start(name: str, command: str, set_up: SetUp, own_server: Server) -> None:
    with set_up(REFUSED[name]).start_worker() as worker:
        assert worker.wait() == 1
        assert f"UNSUPPORTED '{command}' is not a queue command" in worker.output
    assert command in refused_by(own_server)


@pytest.mark.parametrize(("name", "command"), [("Celery", "SET"), ("pyres", "SET")])
def test_a_put_succeeds_and_no_worker_runs_the_job(
    name: str, command: str, set_up: SetUp, own_server: Server
) -> None:
    stand = set_up(REFUSED[name])
    stand.put("a", "b")
    assert refused_by(own_server) == set()
    with stand.start_worker() as worker:
        assert worker.wait() == 1
        assert f"UNSUPPORTED '{command}' is not a queue command" in worker.output
    assert command in refused_by(own_server)
    assert stand.done == []
    assert stand.queued == 2  # they are not lost


@pytest.mark.parametrize(
    ("name", "command", "errors"),
    [("dramatiq", "EVALSHA", 2), ("SAQ", "EVALSHA", 2), ("BullMQ", "EVALSHA", 100)],
)
def test_a_worker_fails_again_and_again(
    name: str, command: str, errors: int, set_up: SetUp, own_server: Server
) -> None:
    with set_up(REFUSED[name]).start_worker() as worker:
        worker.wait_for(f"UNSUPPORTED '{command}' is not a queue command", errors)
        assert worker.process.poll() is None
    assert command in refused_by(own_server)


def test_huey_loses_each_task(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(REFUSED["huey"])
    stand.put("a", "b", "c")
    assert stand.queued == 3
    with stand.start_worker() as worker:
        worker.wait_for("Unhandled error during execution of task", 3)
        worker.wait_for("UNSUPPORTED 'HMGET' is not a queue command", 3)
        wait_for(lambda: stand.queued == 0, "the worker to take all tasks")
        assert worker.process.poll() is None
    assert stand.done == []
    assert {"HMGET", "EVALSHA"} <= refused_by(own_server)


def test_kombu_loses_each_message_that_it_takes(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(REFUSED["kombu"])
    stand.put("a", "b")
    assert stand.queued == 2
    assert refused_by(own_server) == set()
    for left in (1, 0):
        with stand.start_worker() as worker:
            assert worker.wait() == 1
            assert "UNSUPPORTED 'ZADD' is not a queue command" in worker.output
        assert stand.queued == left
    assert stand.done == []
    assert "ZADD" in refused_by(own_server)


def test_a_crawler_with_the_default_queue_crawls_nothing(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(
        in_python(
            "pages:start_urls", "scrapy_redis_app",
            "scrapy", "runspider", "-s", "SCHEDULER_QUEUE_CLASS=scrapy_redis.queue.PriorityQueue",
            str(SCRIPTS / "scrapy_redis_app.py"),
        )
    )  # fmt: skip
    stand.put("a", "b")
    with stand.start_worker() as worker:
        worker.wait_for("UNSUPPORTED 'ZCARD' is not a queue command")
    assert refused_by(own_server) == {"ZCARD"}
    assert stand.done == []
    assert stand.queued == 2

"""Applications in Python that work: docs/compatibility.md has their set-up."""

import pytest

from tests.applications.conftest import SetUp
from tests.support.installed_applications import SCRIPTS, in_python, refused_by
from tests.support.programs import Server, wait_for

_DJANGO_Q2 = in_python("django_q:site:q", "django_q2_app", "django-admin", "qcluster")._replace(
    prepare=("django-admin", "migrate", "--verbosity", "0"),
    variables=(("DJANGO_SETTINGS_MODULE", "django_q2_settings"),),
)
WORKING = {
    "hotqueue": in_python("hotqueue:mails", "hotqueue_app", "python", "-m", "hotqueue_app", "work"),
    "taskiq": in_python("taskiq", "taskiq_app", "taskiq", "worker", "--workers", "1", "taskiq_app:broker"),
    "django-q2": _DJANGO_Q2,
    "django-q2, statistics in its cache": _DJANGO_Q2._replace(
        variables=(("DJANGO_SETTINGS_MODULE", "django_q2_cached_settings"),)
    ),
    "scrapy-redis": in_python(
        "pages:start_urls", "scrapy_redis_app", "scrapy", "runspider", str(SCRIPTS / "scrapy_redis_app.py")
    ),
    "kombu with lists": in_python("mails", "kombu_app", "python", "-m", "kombu_app", "work")._replace(
        variables=(("ACK_EMULATION", "no"),)
    ),
    "Celery with lists": in_python(
        "celery", "celery_lists_app", "celery", "--app", "celery_lists_app", "worker", "--concurrency", "1",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    ),
}  # fmt: skip
# What the server refuses, although the application works.
_REFUSED = {"django-q2": {"SET"}}
# What a worker that is busy with one job does with the next: it leaves it in the queue, begins it as well, or
# takes it into its memory.
_NEXT_JOB = {
    "hotqueue": "left",
    "taskiq": "begun",
    "django-q2": "taken",
    "scrapy-redis": "left",
    "kombu with lists": "left",
    "Celery with lists": "taken",
}


@pytest.mark.parametrize("name", WORKING)
def test_each_job_runs_once(name: str, set_up: SetUp, own_server: Server) -> None:
    stand = set_up(WORKING[name])
    stand.put("a", "b", "c")
    with stand.start_worker():
        stand.wait_until_done("abc")
        # The worker waits for a job now, and takes jobs in the order of the queue.
        stand.put("last")
        stand.wait_until_done(["last"])
        assert stand.queued == 0
    assert sorted(stand.done) == ["a", "b", "c", "last"]
    assert refused_by(own_server) == _REFUSED.get(name, set())


@pytest.mark.parametrize("name", _NEXT_JOB)
def test_a_killed_worker_loses_what_it_has_taken(name: str, set_up: SetUp) -> None:
    stand, next_job = set_up(WORKING[name]), _NEXT_JOB[name]
    left = 1 if next_job == "left" else 0
    stand.put("stuck", "next")
    with stand.start_worker() as worker:
        stand.wait_until_done(["stuck", "next"] if next_job == "begun" else ["stuck"])
        wait_for(lambda: stand.queued == left, "the worker to take its jobs")
        worker.kill()
    stand.put("last")
    with stand.start_worker():
        stand.wait_until_done(["last"])
        assert stand.queued == 0
    assert sorted(stand.done) == ["last", *([] if next_job == "taken" else ["next"]), "stuck"]


def test_a_worker_of_taskiq_waits_longer_than_redis_py_reads(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(WORKING["taskiq"])
    with stand.start_worker() as worker, own_server.client() as client:
        # By default redis-py gives up after five seconds, and the worker ends.
        wait_for(
            lambda: any(int(other["idle"]) > 5 for other in client.client_list()), "the worker to wait long"
        )
        stand.put("last")
        stand.wait_until_done(["last"])
        assert worker.output.count("Listening started") == 1


def test_a_crawler_visits_a_page_once(set_up: SetUp) -> None:
    stand = set_up(WORKING["scrapy-redis"])
    stand.put("links:a,a,b", "links:b,c,a")
    with stand.start_worker():
        stand.wait_until_done("abc")
        stand.put("last")
        stand.wait_until_done(["last"])
    assert sorted(stand.done) == ["a", "b", "c", "last", "links:a,a,b", "links:b,c,a"]


def test_celery_tries_a_task_again(set_up: SetUp, own_server: Server) -> None:
    stand = set_up(WORKING["Celery with lists"])
    stand.put("retried")
    with stand.start_worker():
        wait_for(lambda: stand.done == ["retried"] * 2, "the second try")
        stand.put("last")
        stand.wait_until_done(["last"])
    assert stand.done == ["retried", "retried", "last"]
    assert refused_by(own_server) == set()

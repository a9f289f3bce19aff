"""The page on compatibility: each row has a test, in the version that the row names."""

import json
import re
import subprocess

import pytest

from tests.support.log_shippers import UNPACKED
from tests.support.paths import ROOT

_HERE = ROOT / "tests/applications"
_PAGE = (ROOT / "docs/compatibility.md").read_text("utf-8")
_ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in _PAGE.partition("## Where a queue differs")[0].splitlines()
    if line.startswith("|") and not line.startswith(("| application", "|---"))
]

# By application: the tests of its row.
TESTS = {
    "Laravel 8, over beanstalk": (
        "test_laravel.py::test_jobs_are_worked_in_order_and_those_that_fail_again",
        "test_laravel.py::test_the_job_of_a_killed_worker_comes_again",
        "test_laravel.py::test_the_job_of_a_killed_worker_fails_if_it_may_be_tried_once",
        "test_laravel.py::test_the_job_of_a_worker_that_stands_still_comes_again_after_retry_after",
    ),
    "Symfony Messenger 5.4, over beanstalk": (
        "test_symfony_messenger.py::test_messages_are_handled_in_order_and_those_that_fail_again",
        "test_symfony_messenger.py::test_the_message_of_a_killed_worker_comes_again",
    ),
    "ActiveJob of Rails, over beanstalk": (
        "test_active_job.py::test_jobs_are_performed_and_retried_and_those_that_fail_are_buried",
        "test_active_job.py::test_the_job_of_a_killed_worker_comes_again",
    ),
    "Celery": (
        "test_task_queues.py::test_jobs_are_done_in_order_of_priority",
        "test_task_queues.py::test_the_job_of_a_killed_worker_is_done_again",
        "test_task_queues.py::test_the_job_of_a_killed_child_is_done_again_and_so_is_that_of_its_parent",
        "test_task_queues.py::test_a_worker_that_is_stopped_finishes_its_job",
        "test_task_queues.py::test_a_worker_goes_on_after_a_restart_of_the_server",
        "test_task_queues.py::test_jobs_are_done_while_connections_are_cut",
        "test_task_queues.py::test_a_job_that_is_given_up_is_buried",
        "test_task_queues.py::test_celery_has_no_remote_control",
    ),
    "dramatiq": (
        "test_task_queues.py::test_jobs_are_done_in_order_of_priority",
        "test_task_queues.py::test_the_job_of_a_killed_worker_is_done_again",
        "test_task_queues.py::test_a_worker_that_is_stopped_finishes_its_job",
        "test_task_queues.py::test_a_worker_goes_on_after_a_restart_of_the_server",
        "test_task_queues.py::test_jobs_are_done_while_connections_are_cut",
        "test_task_queues.py::test_a_job_that_is_given_up_is_buried",
    ),
    "Celery with lists, if you cannot install the transport": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_celery_tries_a_task_again",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "kombu's SimpleQueue": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "taskiq, list broker": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_a_worker_of_taskiq_waits_longer_than_redis_py_reads",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "hotqueue": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "django-q2": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "scrapy-redis": (
        "test_python_applications.py::test_each_job_runs_once",
        "test_python_applications.py::test_a_crawler_visits_a_page_once",
        "test_python_applications.py::test_a_killed_worker_loses_what_it_has_taken",
    ),
    "Sidekiq 6, jobs without retries": (
        "test_sidekiq.py::test_jobs_without_retries_run_in_order",
        "test_sidekiq.py::test_a_killed_sidekiq_loses_the_job_that_it_runs",
        "test_sidekiq.py::test_a_sidekiq_that_is_stopped_puts_its_job_back",
    ),
    "rsyslog, syslog-ng": (
        "test_log_shippers.py::test_lines_are_shipped_in_order_and_complete",
        "test_log_shippers.py::test_a_full_queue_holds_the_shipper_back_and_gets_every_line",
        "test_log_readers.py::test_another_reader_gets_what_a_killed_one_has_not_acknowledged",
    ),
    "huey": ("test_refused_applications.py::test_huey_loses_each_task",),
    "kombu's SimpleQueue with default options": (
        "test_refused_applications.py::test_kombu_loses_each_message_that_it_takes",
    ),
    "Sidekiq with retries": (
        "test_sidekiq.py::test_a_job_with_retries_that_raises_is_lost_and_sidekiq_says_so",
        "test_sidekiq.py::test_a_job_for_later_is_refused",
    ),
    "php-resque": (
        "test_resque.py::test_php_resque_queues_a_job_that_it_tracks_although_it_throws",
        "test_resque.py::test_a_worker_of_php_resque_fails_before_it_takes_a_job",
    ),
    "Laravel's redis driver": (
        "test_laravel.py::test_the_redis_driver_throws_and_puts_nothing",
        "test_laravel.py::test_a_worker_with_the_redis_driver_takes_nothing",
    ),
    "Symfony Messenger's redis transport": (
        "test_symfony_messenger.py::test_the_redis_transport_fails_and_puts_nothing",
    ),
    "Celery with its own transport for Redis": (
        "test_refused_applications.py::test_a_put_succeeds_and_no_worker_runs_the_job",
    ),
    "pyres": ("test_refused_applications.py::test_a_put_succeeds_and_no_worker_runs_the_job",),
    "resque": ("test_resque.py::test_a_worker_of_resque_fails_before_it_takes_a_job",),
    "rq, arq, Bull, bee-queue": (
        "test_refused_applications.py::test_a_put_fails_and_puts_nothing",
        "test_refused_applications.py::test_a_worker_ends_at_its_start",
    ),
    "dramatiq with its own broker for Redis, SAQ, BullMQ": (
        "test_refused_applications.py::test_a_put_fails_and_puts_nothing",
        "test_refused_applications.py::test_a_worker_fails_again_and_again",
    ),
    "scrapy-redis with its default queue": (
        "test_refused_applications.py::test_a_crawler_with_the_default_queue_crawls_nothing",
    ),
    "collectd, write_redis": ("test_collectd.py::test_values_are_refused_which_only_the_server_tells",),
}


def _installed(package: str) -> str:
    """Return the version of a package of PyPI, npm or Debian that the tests use."""
    for file in ("requirements.txt", "requirements-older.txt"):
        if found := re.search(rf"^{package}==(\S+)", (_HERE / file).read_text("utf-8"), re.MULTILINE):
            return found[1]
    dependencies = json.loads((_HERE / "package.json").read_text("utf-8"))["dependencies"]
    if package in dependencies:
        return str(dependencies[package])
    status = UNPACKED / f"usr/share/doc/{package}"
    if status.exists():
        changes = next(status.glob("changelog*"))
        text = subprocess.check_output(["zcat", "--force", changes], text=True)
        return text.partition("(")[2].partition(")")[0]
    return subprocess.check_output(["dpkg-query", "-W", "-f", "${Version}", package], text=True)


def test_the_page_has_the_applications_that_are_tested() -> None:
    assert {row[0] for row in _ROWS} == TESTS.keys()
    assert {len(row) for row in _ROWS} == {4, 5}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0])
def test_a_row_has_tests_and_the_versions_that_they_use(row: list[str]) -> None:
    for test in TESTS[row[0]]:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (_HERE / file).read_text("utf-8")
    versions = re.findall(r"`(\S+) (\S+)`", row[1])
    assert versions or row[1].startswith("its commands, by ")
    for package, version in versions:
        assert _installed(package).startswith(version), package

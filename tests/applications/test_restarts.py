"""The server restarts, or its backend is away: each worker does as well as with its usual server.

Beside each application the same is done with the Redis or beanstalkd for which it was made. Workers in the
documentation use commands of ours, so they have no such control.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.applications.test_python_applications import WORKING
from tests.applications.test_task_queues import CELERY, DRAMATIQ
from tests.protocols.resp.test_examples import block as code_block
from tests.support.client_scripts import need_library, need_php_files
from tests.support.installed_applications import SCRIPTS, Application
from tests.support.log_shippers import StartShipper, start_rsyslog, start_syslog_ng
from tests.support.paths import ROOT
from tests.support.requirements import need, need_success
from tests.support.restarts import (
    OUTAGE,
    RESTARTS,
    WHOLE,
    Fault,
    Row,
    ShipperTrial,
    Trial,
    run_beside,
)
from tests.support.stores import (
    BackendStore,
    BeanstalkdStore,
    EmbeddedStore,
    JobQueue,
    ListQueue,
    RedisStore,
    StoreType,
    Tube,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(400)]

_MEMCACHED, _WORKERS = "docs/guides/memcached.md", "docs/guides/workers.md"


def _beanstalk(put: tuple[str, ...], work: tuple[str, ...], tube: str = "mails", ttr: int = 90) -> Row:
    return Row(Application(tube, put, work), partial(Tube, name=tube, ttr=ttr), BeanstalkdStore)


def _redis(application: Application, *queues: str, puts_left: bool = False) -> Row:
    return Row(application, lambda store: ListQueue(store, *queues, puts_left=puts_left), RedisStore)


def _laravel(*arguments: str) -> tuple[str, ...]:
    return ("php", str(SCRIPTS / "laravel.php"), "beanstalkd", "$QUEUE_PORT", *arguments)


def _messenger(*arguments: str) -> tuple[str, ...]:
    address = "beanstalkd://127.0.0.1:$QUEUE_PORT?tube_name=mails&ttr=90"
    return ("php", str(SCRIPTS / "messenger.php"), address, *arguments)


def _active_job(*arguments: str) -> tuple[str, ...]:
    return ("ruby", str(SCRIPTS / "active_job.rb"), "$QUEUE_PORT", *arguments)


# Pheanstalk keeps its connection if a command fails for lack of a backend. So Laravel's job is not ready
# again when the backend is back, but after its time to run.
_LARAVEL = _beanstalk(_laravel("push"), _laravel("work", "maxTries=3"), "default", ttr=15)
_SIDEKIQ_JOBS = str(SCRIPTS / "sidekiq_jobs.rb")
_SIDEKIQ = Application(
    "queue:default",
    ("ruby", _SIDEKIQ_JOBS, "Once", "async"),
    ("sidekiq", "-r", _SIDEKIQ_JOBS, "-c", "1"),
    variables=(("REDIS_URL", "redis://127.0.0.1:$QUEUE_PORT/0"),),
)


class _Language(NamedTuple):
    """How a worker in the documentation is run, the line in which it does its work, and what is added."""

    command: tuple[str, ...]
    line: str
    added: str


_LANGUAGES = {
    "python": _Language(
        ("python", "-c"),
        r'print\("sending(?: to)?", (.*), flush=True\)',
        r'; __import__("work").finish_work(\1)',
    ),
    "php": _Language(
        ("php", "-r"), r"""echo 'sending to ', (.*), "\\n";|echo "sending (.*)\\n";""", r" finish_work(\1\2);"
    ),
    "ruby": _Language(
        ("ruby", "-r", str(SCRIPTS / "work.rb"), "-e"), r'puts "sending to #\{(.*)\}"', r"; finish_work(\1)"
    ),
}


def _documented(block: str, page: str, messages: str, *others: str) -> Row:
    """Return the row of a worker in the documentation, whose work ends when the test lets it end."""
    language = _LANGUAGES[block.split()[0]]
    code = code_block(block, page).replace("<?php\n", f"require '{SCRIPTS}/work.php';\n")
    program, count = re.subn(language.line, r"\g<0>" + language.added, code)
    program, ports = re.subn(r"\b(?:4000|11211)\b", "$QUEUE_PORT", program)
    assert (count, ports) == (1, 1)
    application = Application("mails", ("python", "-m", "mails_app", messages), (*language.command, program))
    return Row(application, lambda store: JobQueue(store, "mails", *others), None)


ROWS = {
    # Laravel ends its worker if the reconnect meets the listener of a server that is just being killed.
    "Laravel": _LARAVEL._replace(
        application=_LARAVEL.application._replace(variables=(("BLOCK_FOR", "5"),)),
        may_end_of="reset by peer",
    ),
    "Symfony Messenger": _beanstalk(_messenger("send"), _messenger("consume", "1000"))._replace(waits=False),
    # Beaneater gives up two seconds after it has lost its connection.
    "ActiveJob": _beanstalk(_active_job("enqueue"), _active_job("work"))._replace(away=0.5),
    "Celery": Row(CELERY, lambda store: JobQueue(store, CELERY.queue), None),
    "dramatiq": Row(DRAMATIQ, lambda store: JobQueue(store, DRAMATIQ.queue), None),
    "Celery with lists": _redis(WORKING["Celery with lists"], "celery", puts_left=True),
    "kombu's SimpleQueue": _redis(WORKING["kombu with lists"], "mails", puts_left=True),
    "taskiq": _redis(WORKING["taskiq"], "taskiq", puts_left=True),
    "hotqueue": _redis(WORKING["hotqueue"], "hotqueue:mails"),
    "django-q2": _redis(WORKING["django-q2"], "django_q:site:q"),
    "scrapy-redis": _redis(WORKING["scrapy-redis"], "pages:start_urls", "pages:requests")._replace(
        waits=False
    ),
    "Sidekiq": _redis(_SIDEKIQ, "queue:default", puts_left=True),
    "README.md": _documented("python worker", "README.md", "text"),
    "workers.md, Python": _documented("python worker", _WORKERS, "json"),
    "workers.md, PHP": _documented("php worker", _WORKERS, "json"),
    "workers.md, Ruby": _documented("ruby worker", _WORKERS, "json"),
    "memcached.md": _documented("php worker", "docs/guides/memcached.md", "memcached")._replace(
        is_memcached=True
    ),
    "workers.md, moves": _documented("python moving worker", _WORKERS, "text", "mails:worker-1"),
}
# What must be installed, apart from what `make test-applications` installs.
_NEEDS: dict[str, Callable[[], object]] = {
    "Laravel": lambda: need_php_files(
        {
            "php-illuminate-queue": "Illuminate/Queue/autoload.php",
            "php-illuminate-events": "Illuminate/Events/autoload.php",
            "php-illuminate-redis": "Illuminate/Redis/autoload.php",
            "php-pda-pheanstalk": "Pheanstalk/autoload.php",
            "php-predis": "/usr/share/php/Predis/Autoloader.php",
        }
    ),
    "Symfony Messenger": lambda: need_php_files(
        {
            "php-symfony-messenger": "Symfony/Component/Messenger/autoload.php",
            "php-symfony-beanstalkd-messenger": "Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php",
            "php-symfony-event-dispatcher": "Symfony/Component/EventDispatcher/autoload.php",
        }
    ),
    "ActiveJob": lambda: need_success(
        "ruby-activejob and ruby-beaneater", "ruby", "-e", "require 'active_job'; require 'beaneater'"
    ),
    "Sidekiq": lambda: need("sidekiq", "ruby-sidekiq"),
    "memcached.md": lambda: need_success(
        "php-memcached", "php", "-r", "exit(class_exists('Memcached') ? 0 : 1);"
    ),
    "workers.md, PHP": lambda: need_library("worker.php"),
    "workers.md, Ruby": lambda: need_library("worker.rb"),
}


class Shipper(NamedTuple):
    """How a log shipper is started, and the most lines that may come twice: its last batch."""

    start: StartShipper
    batch: int
    # The most lines that it loses when its connection ends, also with Redis.
    loses: int = 0
    # Options of the server that the guide recommends for it.
    options: tuple[str, ...] = ()


SHIPPERS = {
    "rsyslog": Shipper(start_rsyslog, batch=128, loses=1, options=("--backend-grace", "1d")),
    "syslog-ng": Shipper(start_syslog_ng, batch=1),
}
FAULTS = pytest.mark.parametrize(
    ("ours", "faults"), [(EmbeddedStore, RESTARTS), (BackendStore, OUTAGE)], ids=["restart", "outage"]
)


@FAULTS
@pytest.mark.parametrize("name", ROWS)
def test_a_worker(name: str, ours: StoreType, faults: dict[str, Fault], tmp_path: Path) -> None:
    _NEEDS.get(name, lambda: None)()
    row = ROWS[name]
    stores = [ours, *([row.control] if row.control else [])]
    outcomes, *controls = run_beside(partial(Trial, row), stores, tmp_path, faults)
    control = controls[0] if controls else {fault: WHOLE[fault.split()[-1]] for fault in outcomes}
    for fault, outcome in outcomes.items():
        print(f"{name}, {fault}: {outcome}\n    {'control' if controls else 'allowed'}: {control[fault]}")
    assert [fault for fault in outcomes if outcomes[fault].is_worse_than(control[fault])] == []


@FAULTS
@pytest.mark.parametrize("name", SHIPPERS)
def test_a_shipper(name: str, ours: StoreType, faults: dict[str, Fault], tmp_path: Path) -> None:
    shipper = SHIPPERS[name]
    stores: list[StoreType] = [lambda folder: ours(folder, *shipper.options), RedisStore]
    outcomes, control = run_beside(partial(ShipperTrial, shipper.start), stores, tmp_path, faults)
    for fault, outcome in outcomes.items():
        print(f"{name}, {fault}: {outcome.summary}\n    control: {control[fault].summary}")
    assert [fault for fault in outcomes if outcomes[fault].lost > shipper.loses] == []
    assert [fault for fault in outcomes if outcomes[fault].twice > shipper.batch] == []


def test_every_application_that_works_has_a_row() -> None:
    page = (ROOT / "docs/compatibility.md").read_text("utf-8")
    table = page.partition("## They work\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| ([^|]+?) \| `", table, re.MULTILINE)
    assert names
    assert [name for name in names if not name.startswith((*ROWS, *SHIPPERS))] == []

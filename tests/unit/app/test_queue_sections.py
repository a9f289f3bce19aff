"""The sections of the configuration file that set queues by name: their order, and what is refused."""

from pathlib import Path

import pytest

from pressure_server.app.queue_sections import read_templates
from pressure_server.net.listener import SettingsError
from pressure_server.queues.operations.queue_info import QueueInfo
from pressure_server.queues.operations.queue_options import ALTER_OPTIONS, CREATE_OPTIONS, Creation
from pressure_server.queues.policy import Policy
from tests.support.guards import settings_of

SECTIONS = """
max-clients = 7

[queues."mails:*"]
bound = 10
overflow = "Error"
max-deliveries = 5
dead_letter = "failed"

[queues.failed]

[queues."*:ring"]
max-bytes = 5
overflow = "overwrite"
ttl = 1.5

[queues."*"]
type = "lifo"
"""


def config(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_the_first_section_that_matches_counts(tmp_path: Path) -> None:
    policy = Policy(templates=read_templates(config(tmp_path, SECTIONS), default_bound=77))
    creations = {
        name: template.creation
        for name in (b"mails:1", b"mails:ring", b"failed", b"a:ring", b"\xff")
        if (template := policy.template_of(name))
    }
    mails = Creation(10, b"error", type=b"jobs", max_deliveries=5, dead_letter=b"failed")
    assert creations == {
        b"mails:1": mails,
        b"mails:ring": mails,
        b"failed": Creation(77),
        b"a:ring": Creation(77, b"overwrite", max_bytes=5, ttl=1.5),
        b"\xff": Creation(77, type=b"lifo"),
    }
    assert policy.limits_of_new(b"mails:1") == (10, 0)
    assert policy.limits_of_new(b"a:ring") == (77, 5)
    assert Policy(create_bound=3, max_bytes=4).limits_of_new(b"a") == (3, 4)


def test_settings_have_the_sections_and_the_defaults(tmp_path: Path) -> None:
    settings = settings_of("--config", str(config(tmp_path, SECTIONS)), "--default-bound", "9")
    assert settings.max_clients == 7
    bounds = {one.pattern: one.creation.bound for one in settings.policy.templates}
    assert bounds == {"mails:*": 10, "failed": 9, "*:ring": 9, "*": 9}
    assert len(settings.of_worker().policy.templates) == len(bounds)
    assert settings_of().policy.templates == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[queues."a*"]\nbuond = 5', 'line 2, [queues."a*"]: unknown option buond: did you mean bound?'),
        ("[queues.a]\nif-not-exists = 5", "unknown option if-not-exists: the options are bound, overflow, "),
        ("bound = 1\n[queues.b]\n[queues.a]\nbound = 'x'", "line 4, [queues.\"a\"]: invalid value for bou"),
        ("[queues.a]\nbound = true", "line 2, [queues.\"a\"]: invalid value for bound: write a number"),
        ("[queues.a]\nttl = [1]", "invalid value for ttl"),
        ("[queues.a]\nttl = '5 minutes'", "invalid value for ttl: write a time such as 300 or 5m"),
        ("[queues.a]\noverflow = 'drop'", "invalid value for overflow: 'drop' is none of BLOCK, ERROR"),
        ("\n[queues.a]\noverflow = 'overwrite'", "line 2, [queues.\"a\"]: OVERFLOW OVERWRITE needs a BOUND"),
        ("[queues.a]\ndead-letter = 'b'", "DEAD-LETTER needs MAX-DELIVERIES"),
        ("[queues.a]\nunique = 'queued'\ntype = 'log'", "UNIQUE needs TYPE JOBS, LIFO or RANDOM"),
        (
            "[queues.'*']\nmax-deliveries = 1\ndead-letter = 'f'",
            "a queue cannot be its own DEAD-LETTER queue: write a section [queues.\"f\"] before this one",
        ),
        ("[queues.a]\nmax-deliveries = 1\ndead-letter = 'f:bound'", "'f:bound' cannot be a queue's name"),
        (f"[queues.'{'a' * 5000}']", "pattern is too long"),
        ("queues = 5", "queues has sections only"),
        ("[queues]\nbound = 5", "queues has sections only"),
        ("[[queues.a]]", "queues has sections only"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_templates(config(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path))
    assert error in str(refused.value)


def test_times_may_have_a_unit(tmp_path: Path) -> None:
    text = "[queues.a]\nack = 'next'\nack-ttr = '5m'\nttl = 1.5\ntype = 'jobs'\nretry-delay = '250ms'"
    (template,) = read_templates(config(tmp_path, text))
    creation = template.creation
    assert (creation.ack_ttr, creation.ttl, creation.retry_delay) == (300, 1.5, 0.25)


def test_each_option_of_create_is_known_of_a_queue() -> None:
    # `queues apply` compares them.
    fields = {name.decode().lower().replace("-", "_") for name, parse in CREATE_OPTIONS.items() if parse}
    assert fields <= set(QueueInfo._fields)
    assert ALTER_OPTIONS.keys() <= CREATE_OPTIONS.keys()

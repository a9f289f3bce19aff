"""The programs in docs/guides/move-from-redis.md copy a list, in order, also after one was killed."""

import subprocess

import pytest

from tests.protocols.resp.test_examples import PORT, RUNNERS, block, need_library
from tests.support.ports import free_ports
from tests.support.programs import TIMEOUT, StartServer, StartValkey

pytestmark = pytest.mark.clients

_PAGE = "docs/guides/move-from-redis.md"


@pytest.mark.parametrize("language", ["python", "php"])
def test_the_programs_copy_a_list_oldest_message_first(
    language: str, start_valkey: StartValkey, start_server: StartServer
) -> None:
    need_library(language)
    old_port = str(free_ports(1)[0])
    old = start_valkey("--port", old_port)
    server = start_server("--backend", old.url)
    program = block(f"{language} copier", _PAGE)
    assert (program.count(PORT), program.count("6379")) == (1, 1)
    with old.client() as direct, server.client() as client:
        direct.lpush("mails", *range(1, 100))
        # A copier that was killed has left this one.
        direct.lpush("mails:copied", 0)
        ended = subprocess.run(
            RUNNERS[language],
            input=program.replace(PORT, str(server.port)).replace("6379", old_port),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
        assert ended.stdout == "100 messages are in the queue\n"
        assert client.lrange("mails", 0, -1) == [b"%d" % number for number in range(100)]
        assert direct.exists("mails", "mails:copied") == 0

"""A cluster in place of the shared backend, and the tests that cannot pass on it: `pytest --on-cluster`.

Tests that look into the backend, or break it, are skipped.
"""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.programs import Client, Valkey, wait_for
from tests.support.sharded import url_of

_TOGETHER = "moves, transactions and stored results need their queues in one shard"
_IDS = "the ids of jobs do not begin with 1"
_CURSORS = "a scan goes from shard to shard, and may return nothing at first"
_DATABASES = "a cluster has one database"
_VALUES = "values of memcached are on one node"
_PREFIX = "PRESSURE.INFO tells the prefix of the queue's shard"
_ONE_NODE = "a thread looks into the backend's one node"

# By a pattern for the end of a test's id, after a slash.
_REASONS = {
    r"test_half_close\.py::test_a_command_that_waits_ends.*\[BLMOVE": _TOGETHER,
    r"test_jobs\.py::.*dead_letters": _TOGETHER,
    r"test_moving\.py::test_(a_move_|long_and_endless|replies_are)": _TOGETHER,
    r"test_moving\.py::test_invalid_and_short_timeouts.*\[(BLMOVE|BRPOPLPUSH)": _TOGETHER,
    r"test_orders\.py::.*(newest_message_of_a_lifo|a_move_from)": _TOGETHER,
    r"test_pressure_commands\.py::test_a_series.*(altering|overwriting)": _TOGETHER,
    r"test_redis_compatibility\.py::test_a_sequence.*(connection|one member|options|several)": _CURSORS,
    r"test_redis_compatibility\.py::test_a_command_without.*\[SCAN 0(_| COUNT 1| MATCH \*| TYPE .)": _CURSORS,
    r"test_transactions\.py::test_(a_move|a_put_without_room|a_transaction_may_use|commands_see)": _TOGETHER,
    r"test_transactions\.py::test_(a_pipeline_of_redis_py_is|other_clients_never|pops_with)": _TOGETHER,
    r"test_transactions\.py::test_replies.*\[(blocking commands with a|deleting|invisible|keys)": _TOGETHER,
    r"test_transactions\.py::test_replies.*\[(list moves|moves|nothing)": _TOGETHER,
    r"test_transactions\.py::test_replies.*\[watched, (moved|the second|unchanged)": _TOGETHER,
    r"test_transactions\.py::test_replies.*\[(databases|watched before SELECT|watched.*database)": _DATABASES,
    r"test_trimming\.py::test_(results_of_set_algebra|stored_results)": _TOGETHER,
    r"test_waiting\.py::test_(a_message_passes_through_a_chain|waiting_clients_receive_stopping)": _TOGETHER,
    r"test_waiting\.py::test_a_get_replies_nil.*\[(BLMOVE|BRPOPLPUSH)": _TOGETHER,
    r"test_(groups|logs)\.py::test_a_series.*refused": _TOGETHER,
    r"beanstalk/test_clients\.py::test_(an_example.*stalkc?\]|jobs_behave|jobs_can_be_used_by_hand)": _IDS,
    r"beanstalk/test_clients\.py::test_a_message_crosses_from_beanstalk_in_php": _IDS,
    r"beanstalk/test_protocol\.py::test_a_put_into_a_full_queue": _IDS,
    r"test_groups\.py::test_a_(series.*reading|message_that_was_buried|put_wakes)": _IDS,
    r"test_groups\.py::test_(beanstalk_workers|readers_of_a_closed|what_is_not_acknowledged)": _IDS,
    r"test_half_close\.py::test_all_requests_before.*beanstalk": _IDS,
    r"test_jobs\.py::test_a_(detached|job_without_a_place|kick|reservation_ends)": _IDS,
    r"test_jobs\.py::test_(jobs_of_a_server_that_is_killed_are|only_the_owner)": _IDS,
    r"test_limits\.py::test_a_(queue_that_has_reached|ring_of_jobs)": _IDS,
    r"test_outcomes\.py::test_a_series.*types": _IDS,
    r"test_trimming\.py::test_a_series.*purging": _IDS,
    r"test_message_queue\.py::": _VALUES,
    r"test_observing\.py::test_info_has_the_queues_of_all_databases": _DATABASES,
    r"test_pressure_commands\.py::test_info_returns_the_settings": _PREFIX,
    r"test_protocol\.py::test_delete_is_atomic": _ONE_NODE,
    r"test_waiting_for_roles\.py::test_a_get_makes_room": _ONE_NODE,
}


def mark(item: pytest.Item) -> None:
    """Skip a test that cannot pass on a cluster."""
    for pattern, reason in _REASONS.items():
        if re.search(rf"/{pattern}", item.nodeid):
            item.add_marker(pytest.mark.skip(reason=reason))


class SpreadValkey(Valkey):
    """Three masters of Redis, with 16 shards."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._cluster = self._stack.enter_context(Cluster(folder).started())
        self.url = url_of(self._cluster)

    def __getattr__(self, _name: str) -> NoReturn:
        # `process`, `socket` and `folder` of a Valkey.
        pytest.skip("needs a backend of one node")

    def client(self, **_options: object) -> Client:
        """Skip the test."""
        pytest.skip("looks into a backend of one node")

    def flush(self) -> None:
        """See Valkey."""
        for node in self._cluster.nodes:
            with redis.Redis(node.host, node.port) as client:
                wait_for(lambda: client.info("clients")["blocked_clients"] == 0, "blocked clients to go")
                client.flushall()

    def stop(self, _number: int = 0) -> int:
        """End all nodes."""
        self._stack.close()
        return 0

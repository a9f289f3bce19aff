"""Tests that are coroutines, and the cluster that most modules use."""

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, ClusterNode


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters of Debian's Redis."""
    with Cluster(tmp_path_factory.mktemp("cluster")).started() as made:
        yield made


async def another(cluster: Cluster, than: ClusterNode) -> ClusterNode:
    """Return another master."""
    return next(node for node in cluster.nodes if node is not than)

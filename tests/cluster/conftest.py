"""The cluster that most modules use."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, ClusterNode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters of Debian's Redis."""
    with Cluster(tmp_path_factory.mktemp("cluster")).started() as made:
        yield made


async def another(cluster: Cluster, than: ClusterNode) -> ClusterNode:
    """Return another master."""
    return next(node for node in cluster.nodes if node is not than)

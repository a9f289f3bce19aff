"""The note of the number of shards, in memory: when it is written, and which one is accepted."""

from typing import Any, cast

import pytest

from pressure_server.backend.greeting import check_layout
from pressure_server.backend.requests import Channel
from pressure_server.errors import BackendRefusedError, BackendReplyError


class Node:
    """A node with a note. It may refuse writes, and another server may be faster with its note."""

    guard = b"{p}!guard"

    def __init__(
        self, noted: bytes | None = None, *, refuses: bool = False, faster: bytes | None = None
    ) -> None:
        self.noted = noted
        self._refuses = refuses
        self._faster = faster

    async def command(self, name: bytes, *arguments: bytes) -> Any:
        if name == b"GET":
            return self.noted
        if self._refuses:
            raise BackendReplyError("the backend answered: OOM command not allowed")
        self.noted = self.noted or self._faster or arguments[1]
        return b"OK"


async def check(node: Node, layout: bytes = b"16 3", *, is_user: bool = True) -> None:
    await check_layout(cast(Channel, node), layout, is_user=is_user)


async def test_the_first_server_notes_the_layout() -> None:
    node = Node()
    await check(node, is_user=False)
    assert node.noted is None
    await check(node)
    assert node.noted == b"16 3"


async def test_a_node_that_refuses_writes_can_be_used_if_the_layout_is_noted() -> None:
    await check(Node(b"16 3", refuses=True))
    with pytest.raises(BackendReplyError, match="OOM"):
        await check(Node(refuses=True))


@pytest.mark.parametrize("node", [Node(b"8 3"), Node(faster=b"8 3")], ids=["before", "at the same time"])
async def test_another_layout_is_refused(node: Node) -> None:
    with pytest.raises(BackendRefusedError, match="8 shards, not in 16"):
        await check(node)

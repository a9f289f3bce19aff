"""The synchronous clients have the methods of the asyncio clients."""

import asyncio
import inspect

import pytest

from pressure_server import client
from pressure_server.client.synchronous import run


def public_methods(kind: type) -> dict[str, list[inspect.Parameter]]:
    """Return the parameters of each public method."""
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [*inspect.signature(function).parameters.values()]
        for name, function in functions
        if not name.startswith("_") or name == "__init__"
    }


@pytest.mark.parametrize("name", ["Queue", "JobQueue", "Job", "LogQueue", "Group"])
def test_both_clients_have_the_same_methods(name: str) -> None:
    blocking, suspending = (
        public_methods(getattr(client, name)),
        public_methods(getattr(client, f"Async{name}")),
    )
    if name in ("Job", "Group"):
        # A queue makes these.
        del blocking["__init__"], suspending["__init__"]
    assert blocking == suspending


def test_a_coroutine_that_suspends_is_an_error() -> None:
    async def suspend() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="has suspended"):
        run(suspend())

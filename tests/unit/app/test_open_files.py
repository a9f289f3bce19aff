"""How the limit on open files is shared by clients, TLS handshakes and HTTP connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.app.cli import serve_command
from pressure_server.app.open_files import FEWEST_CLIENTS, Connections, Demand
from pressure_server.app.settings import Settings
from pressure_server.errors import StartError

# Of the server itself.
OWN = 64
DEMANDS = st.builds(
    Demand,
    st.integers(1, 20_000),
    clients_use_tls=st.booleans(),
    tls_listeners=st.integers(0, 4),
    has_http=st.booleans(),
)


@pytest.mark.parametrize(
    ("demand", "limit", "allowed"),
    [
        (Demand(10_000), 20_000, Connections(10_000)),
        (Demand(10_000), 1024, Connections(960)),
        (Demand(10_000, has_http=True), 20_000, Connections(10_000)),
        # Clients get half, or what they need.
        (Demand(10_000, has_http=True), 1024, Connections(480, 120, 240)),
        (Demand(100, has_http=True), 1024, Connections(100, 215, 430)),
        (Demand(10_000, clients_use_tls=True, tls_listeners=1), 1024, Connections(352, 256)),
        (Demand(10_000, clients_use_tls=True, tls_listeners=3), 1024, Connections(240, 160, 320)),
        (Demand(10_000, has_http=True), 128, Connections(32, 8, 16)),
        (Demand(5), 69, Connections(5)),
        (Demand(0, has_http=True), 256, Connections(0, 48, 96)),
    ],
)
def test_open_files_are_shared(demand: Demand, limit: int, allowed: Connections) -> None:
    found = demand.within(limit)
    assert found.clients == allowed.clients
    if demand.tls_listeners:
        assert found.handshakes == allowed.handshakes
    if demand.has_http:
        assert found.http == allowed.http


@pytest.mark.parametrize(
    ("demand", "limit", "clients"),
    [(Demand(10_000), 95, 31), (Demand(5), 68, 4), (Demand(40, has_http=True), 1, 0)],
)
def test_too_few_open_files_for_a_useful_number_of_clients_fail(
    demand: Demand, limit: int, clients: int
) -> None:
    with pytest.raises(StartError) as refused:
        demand.within(limit)
    assert f"limit on open files, {limit}, leaves room for {clients} client" in str(refused.value)
    assert f"to {demand.files} for {demand.clients} clients" in str(refused.value)


@given(DEMANDS, st.integers(0, 30_000))
def test_the_shares_fit_into_the_limit(demand: Demand, limit: int) -> None:
    try:
        found = demand.within(limit)
    except StartError:
        assert limit < OWN + 2 * FEWEST_CLIENTS * demand.files_each
        return
    least = 2 * demand.has_http + demand.tls_listeners  # one of each kind
    beside = 2 * found.http * demand.has_http + found.handshakes * demand.tls_listeners
    assert found.clients * demand.files_each + max(0, beside - least) + OWN <= limit
    assert min(demand.clients, FEWEST_CLIENTS) <= found.clients <= demand.clients


def _demand(*arguments: str) -> Demand:
    arguments = ("--tls-certificate", "none", *arguments)
    return Demand.of(Settings(**serve_command.make_context("serve", list(arguments)).params))


def test_the_settings_say_what_is_wanted() -> None:
    assert _demand("--max-clients", "7") == Demand(7)
    many = (
        "--listen",
        "resps://127.0.0.1:1",
        "--listen",
        "beanstalks://127.0.0.1:2",
        "--http",
        "https://127.0.0.1:3",
    )
    assert _demand("--max-clients", "7", *many) == Demand(
        7, clients_use_tls=True, tls_listeners=3, has_http=True
    )
    # Workers have the clients.
    assert _demand(*many, "--workers", "2") == Demand(0, tls_listeners=1, has_http=True)

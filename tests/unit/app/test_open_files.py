"""How the limit on open files is shared by clients, TLS handshakes and HTTP connections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pressure_server.app.cli import serve_command
from pressure_server.app.open_files import FEWEST_CLIENTS, Connections, Demand
from pressure_server.app.settings import Settings
from pressure_server.errors import StartError

# Of the server itself.
OWN = 64
HTTP, HANDSHAKES = 1024, 256  # the files of the HTTP connections, and of the handshakes of a TLS listener


@pytest.mark.parametrize(
    ("demand", "limit", "allowed"),
    [
        (Demand(10_000), 20_000, Connections(10_000)),
        (Demand(10_000), 1024, Connections(960)),
        (Demand(10_000, 1, HTTP), 20_000, Connections(10_000)),
        # Clients get half, or what they need.
        (Demand(10_000, 1, HTTP), 1024, Connections(480, 120, 240)),
        (Demand(100, 1, HTTP), 1024, Connections(100, 215, 430)),
        (Demand(10_000, 2, HANDSHAKES), 1024, Connections(352, 256)),
        (Demand(10_000, 2, 3 * HANDSHAKES), 1024, Connections(240, 160, 320)),
        (Demand(10_000, 1, HTTP), 128, Connections(32, 8, 16)),
        (Demand(5), 69, Connections(5)),
        (Demand(0, 1, HTTP), 256, Connections(0, 48, 96)),
    ],
)
def test_open_files_are_shared(demand: Demand, limit: int, allowed: Connections) -> None:
    assert demand.within(limit) == allowed


@pytest.mark.parametrize(
    ("demand", "limit", "clients"),
    [(Demand(10_000), 95, 31), (Demand(5), 68, 4), (Demand(40, 1, HTTP), 1, 0)],
)
def test_too_few_open_files_for_a_useful_number_of_clients_fail(
    demand: Demand, limit: int, clients: int
) -> None:
    with pytest.raises(StartError) as refused:
        demand.within(limit)
    assert f"limit on open files, {limit}, leaves room for {clients} client" in str(refused.value)
    assert f"to {demand.files} for {demand.clients} clients" in str(refused.value)


@given(
    st.integers(1, 20_000), st.sampled_from((1, 2)), st.integers(0, 4), st.booleans(), st.integers(0, 30_000)
)
def test_the_shares_fit_into_the_limit(
    clients: int, files_each: int, tls_listeners: int, has_http: bool, limit: int
) -> None:
    demand = Demand(clients, files_each, tls_listeners * HANDSHAKES + has_http * HTTP)
    try:
        found = demand.within(limit)
    except StartError:
        assert limit < OWN + 2 * FEWEST_CLIENTS * files_each
        return
    least = 2 * has_http + tls_listeners  # one of each kind
    beside = 2 * found.http * has_http + found.handshakes * tls_listeners
    assert found.clients * files_each + max(0, beside - least) + OWN <= limit
    assert min(clients, FEWEST_CLIENTS) <= found.clients <= clients


def _demand(*arguments: str) -> Demand:
    arguments = ("--tls-certificate", "none", *arguments)
    return Demand.of(Settings(**serve_command.make_context("serve", list(arguments)).params))


def test_the_settings_say_what_is_wanted() -> None:
    assert _demand("--max-clients", "7") == Demand(7)
    tls = ("--listen", "resps://127.0.0.1:1", "--listen", "beanstalks://127.0.0.1:2")
    many = (*tls, "--http", "https://127.0.0.1:3")
    assert _demand("--max-clients", "7", *many) == Demand(7, 2, 3 * HANDSHAKES + HTTP)
    # Workers have the clients.
    assert _demand(*many, "--workers", "2") == Demand(0, 1, HANDSHAKES + HTTP)

"""The maker of a run's clients: gives each a name, a proxy, and a source of random numbers."""

import random
from collections.abc import Sequence

from tests.chaos.caller import Caller
from tests.chaos.journal import Journal
from tests.chaos.stand import Proxy


class Maker:
    """Makes callers. The clients use the proxies in turn. `made` is the number of the last client."""

    def __init__(self, proxies: Sequence[Proxy], journal: Journal, seed: int) -> None:
        self.made = 0
        self._proxies = proxies
        self._journal = journal
        self._seed = seed

    def next(self, name: str) -> tuple[str, Proxy]:
        """Return the next client's name, and its proxy."""
        self.made += 1
        return f"{name}-{self.made}", self._proxies[self.made % len(self._proxies)]

    def caller(self, name: str) -> Caller:
        """Return the next client, a Redis client whose connection faults do not break."""
        return Caller(*self.next(name), self._journal, relayed=False)

    def callers(self, name: str) -> list[Caller]:
        """Return the callers of the next client, one for each proxy. Faults break their connections."""
        name, _ = self.next(name)
        return [Caller(name, proxy, self._journal, relayed=True) for proxy in self._proxies]

    def chance(self) -> random.Random:
        """Return random numbers for the last client."""
        return random.Random(self._seed * 1000 + self.made)

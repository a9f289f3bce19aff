"""A clock for tests in memory."""

from tests.interleavings.loop import ModelLoop


class Clock(ModelLoop):
    """An event loop whose time the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 100.0

    def run_to(self, time: float) -> None:
        """Let time pass, and call what is due in order."""
        while self.advance(within=time - self._now):
            self.run_one()
        self._now = time

    def run_for(self, seconds: float) -> None:
        """Let time pass by `seconds`, and call what is due in order."""
        self.run_to(self._now + seconds)

    @property
    def timers(self) -> list[float]:
        """The times at which something is due."""
        return [when for when, _, handle in self._timers if not handle.is_cancelled]

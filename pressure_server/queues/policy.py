"""The policy: the settings that apply to all queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pressure_server.queues.templates import QueueTemplate

BLOCK, ERROR = "block", "error"


@dataclass(frozen=True)
class Policy:
    """The settings that apply to all queues.

    A queue that a put creates gets the settings of the first of the `templates` that matches its name.
    `create_bound` is the bound if none does; None: puts create no queues.
    `overflow` is what a put on a full queue does if the queue has no setting: BLOCK waits for room up to
    `put_timeout` seconds (None: for ever), ERROR fails. Operations wait `role_timeout` seconds for a role
    that a native client holds. At most `max_waiting` operations may wait at the same time. A queue remembers
    the outcome of a put with a transaction id for `outcome_ttl` seconds, but not of more than `max_outcomes`
    puts. A queue that is created without a limit of bytes gets `max_bytes`; servers create at most
    `max_queues` queues, and put nothing while the backend uses more than `max_stored_bytes`. 0: no limit.
    """

    create_bound: int | None = 0
    overflow: str = BLOCK
    put_timeout: float | None = None
    role_timeout: float = 5.0
    max_waiting: int = 200_000
    outcome_ttl: float = 3600.0
    max_outcomes: int = 100_000
    max_bytes: int = 0
    max_queues: int = 0
    max_stored_bytes: int = 0
    templates: tuple[QueueTemplate, ...] = ()

    def template_of(self, name: bytes) -> QueueTemplate | None:
        """Return the first template that matches the name of a queue."""
        return next((one for one in self.templates if one.glob.matches(name)), None)

    def limits_of_new(self, name: bytes) -> tuple[int, int]:
        """Return the bound, and the limit of bytes, of a queue that a put creates; 0 for none."""
        template = self.template_of(name)
        if template is None:
            return self.create_bound or 0, self.max_bytes
        own = template.creation.max_bytes
        return template.creation.bound or 0, self.max_bytes if own is None else own

"""The ledger of a chaos run. It identifies messages by their names."""

from __future__ import annotations

from tests.chaos.messages import flags_of, name_of
from tests.support.ledger import Event, Ledger, Strange


class NamedLedger(Ledger):
    """A ledger of the messages of `messages.py`. It detects changed messages and wrong flags."""

    def __init__(self) -> None:
        super().__init__()
        self.last_receipt = 0.0

    def read(self, data: bytes, receipt: Event, flags: int | None = None) -> None:
        """Note a message that a client has received, with its flags if the reply had any."""
        name = self.see(data, receipt, flags)
        if name:
            self.receive([name], receipt)

    def see(self, data: bytes, receipt: Event, flags: int | None = None) -> bytes:
        """Note a message that a client has read, and that stays in its queue or is put back.

        Return its name, or b"" if nobody sent it.
        """
        self.last_receipt = receipt.when
        try:
            name = name_of(data)
        except ValueError:
            name = b""
        is_sent = self.is_sent(name)
        if not is_sent or (flags is not None and flags != flags_of(name)):
            self.strange.append(Strange(data, receipt, flags))
        return name if is_sent else b""

"""The states of a client's connection, and the events that change them: one table for each of its two sides.

Pure. The server's side says what the server still does for the client. The client's side says whether the
client may still send and read. An event that a state does not name leaves the state as it is.
"""

from collections.abc import Mapping
from enum import Enum, auto


class ServerSide(Enum):
    """What the server still does for the client: what the state means, and whether it takes commands."""

    OPEN = "commands are executed", True
    UNREAD = "commands wait: the client reads its replies too slowly", True
    THROTTLED = "commands wait: the memory account has no room", True
    THROTTLED_UNREAD = "commands wait for both", True
    ENDING = "replies to the commands that have begun are written, no other command is executed", False
    STOPPING = "the same, because the server stops, and some replies are still to come", False
    STOPPING_IDLE = "the same, and no reply was to come when the server began to stop", False
    HUNG_UP = "everything is written, and the server has closed its side", False
    EVICTED = "the buffers are freed: the client receives an error, and no longer counts", False
    BROKEN_OFF = "the connection is ended at once: unsent replies are dropped", False
    CLOSED = "the connection has ended", False

    def __init__(self, meaning: str, takes_commands: bool) -> None:
        self.meaning = meaning
        self.takes_commands = takes_commands


class ClientSide(Enum):
    """What the client still does, and what the state means."""

    OPEN = "it may send and read"
    HALF_CLOSED = "it has closed its sending side: it may read on, or may have closed altogether"
    READ_TO_END = "the same, and all that it sent has been read"
    LEFT = "it reads no more, or the system cannot tell: messages are not delivered"
    MUTED = "a reply with messages was not delivered: later replies are dropped"


class Event(Enum):
    """What changes the state of one side."""

    # The server's side.
    UNREAD = auto()  # the transport's buffer is full
    READ = auto()  # the client has read enough
    THROTTLE = auto()
    RESUME = auto()
    END = auto()  # the client quits, is idle, is killed, or has broken the protocol
    STOP = auto()  # the server stops, and all commands have been answered
    STOP_BUSY = auto()  # the server stops, and some commands have not been answered
    HANG_UP = auto()  # everything is written
    EVICT = auto()
    BREAK_OFF = auto()
    CLOSE = auto()
    # The client's side.
    HALF_CLOSE = auto()
    READ_END = auto()
    LEAVE = auto()
    NOT_DELIVERED = auto()


_BREAKS = {Event.BREAK_OFF: ServerSide.BROKEN_OFF, Event.CLOSE: ServerSide.CLOSED}
_ENDS = {
    Event.END: ServerSide.ENDING,
    Event.STOP: ServerSide.STOPPING_IDLE,
    Event.STOP_BUSY: ServerSide.STOPPING,
    Event.EVICT: ServerSide.EVICTED,
    **_BREAKS,
}
_STOPS = {Event.HANG_UP: ServerSide.HUNG_UP, Event.EVICT: ServerSide.EVICTED, **_BREAKS}

SERVER_SIDE: Mapping[ServerSide, Mapping[Event, ServerSide]] = {
    ServerSide.OPEN: {Event.UNREAD: ServerSide.UNREAD, Event.THROTTLE: ServerSide.THROTTLED, **_ENDS},
    ServerSide.UNREAD: {Event.READ: ServerSide.OPEN, Event.THROTTLE: ServerSide.THROTTLED_UNREAD, **_ENDS},
    ServerSide.THROTTLED: {Event.RESUME: ServerSide.OPEN, Event.UNREAD: ServerSide.THROTTLED_UNREAD, **_ENDS},
    ServerSide.THROTTLED_UNREAD: {Event.READ: ServerSide.THROTTLED, Event.RESUME: ServerSide.UNREAD, **_ENDS},
    ServerSide.ENDING: {Event.STOP: ServerSide.STOPPING_IDLE, Event.STOP_BUSY: ServerSide.STOPPING, **_STOPS},
    ServerSide.STOPPING: _STOPS,
    ServerSide.STOPPING_IDLE: _STOPS,
    ServerSide.HUNG_UP: {Event.EVICT: ServerSide.EVICTED, **_BREAKS},
    ServerSide.EVICTED: _BREAKS,
    ServerSide.BROKEN_OFF: {Event.CLOSE: ServerSide.CLOSED},
    ServerSide.CLOSED: {},
}

CLIENT_SIDE: Mapping[ClientSide, Mapping[Event, ClientSide]] = {
    ClientSide.OPEN: {Event.HALF_CLOSE: ClientSide.HALF_CLOSED, Event.LEAVE: ClientSide.LEFT},
    ClientSide.HALF_CLOSED: {Event.READ_END: ClientSide.READ_TO_END},
    ClientSide.READ_TO_END: {},
    ClientSide.LEFT: {Event.NOT_DELIVERED: ClientSide.MUTED},
    ClientSide.MUTED: {},
}

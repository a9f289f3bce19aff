"""A proxy for the native client for Python: `python -m tests.waiting.matrix.native BACKEND-URL SOCKET`.

It speaks RESP, so that the matrix starts a native operation as it starts any other command. Each
connection has a thread. OPEN creates the client, because connecting takes longer than a step of the sweep.
"""

import contextlib
import socket
import sys
import threading
from typing import Any

import hiredis

from pressure_server.client import Queue
from pressure_server.errors import PressureError


def _execute(queues: dict[str, Queue], url: str, words: list[Any]) -> bytes:
    name, queue, *arguments = (word.decode() for word in words)
    if queue not in queues:
        queues[queue] = Queue(queue, url)
    client = queues[queue]
    try:
        match name:
            case "OPEN":
                client.exists()
            case "GET":
                message = client.get(float(arguments[0]))
                return b"$%d\r\n%s\r\n" % (len(message), message)
            case "PUT":
                client.put(arguments[0], float(arguments[1]))
            case "CLOSE":
                client.close()
            case "DELETE":
                client.delete()
    except PressureError as error:
        return f"-{error.code} {error}\r\n".encode()
    return b"+OK\r\n"


def _serve(connected: socket.socket, url: str) -> None:
    queues: dict[str, Queue] = {}
    reader = hiredis.Reader()
    with connected, contextlib.suppress(ConnectionError):
        while received := connected.recv(1 << 16):
            reader.feed(received)
            while words := reader.gets():
                connected.sendall(_execute(queues, url, words))
    for queue in queues.values():
        queue.disconnect()


def main() -> None:
    """Serve until the process is killed."""
    url, path = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        while True:
            connected, _ = listener.accept()
            threading.Thread(target=_serve, args=(connected, url), daemon=True).start()


if __name__ == "__main__":
    main()

"""Puts mails for the workers in the documentation: `text WORD …`, `json WORD …` or `memcached WORD …`."""

import json
import socket
import sys

import redis
from work import PORT

kind, *words = sys.argv[1:]
if kind == "memcached":
    with socket.create_connection(("127.0.0.1", PORT)) as server:
        for word in words:
            server.sendall(f"set mails 0 0 {len(word)}\r\n{word}\r\n".encode())
            assert server.recv(100) == b"STORED\r\n"
else:
    with redis.Redis(port=PORT) as client:
        client.rpush("mails", *(json.dumps({"to": word}) if kind == "json" else word for word in words))

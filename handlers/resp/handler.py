"""What the core knows of this handler: how to make a connection, and how to ask whether a server is well."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from handlers.resp import commands
from handlers.resp.connection import RespConnection
from handlers.resp.parser import Limits
from pressure_server.handler import Context
from pressure_server.settings import Listen


class RespHandler:
    """See pressure_server.handler.Handler."""

    def __init__(self, context: Context) -> None:
        commands.load()
        self._context = context
        self._limits = Limits(context.settings.max_message_bytes)

    def connect(self) -> RespConnection:
        """A connection for a client that has just come."""
        return RespConnection(self._context, self._limits)

    @staticmethod
    def ping(listen: Listen, timeout: float) -> None:
        """Send PING, as a Redis client does. Raises OSError with the reason if the server is not well."""
        where: dict[str, Any] = (
            {"unix_socket_path": listen.path} if listen.path else {"host": listen.host, "port": listen.port}
        )
        if listen.tls:
            # Nothing secret is sent, and the certificate is seldom for the address that is listened on.
            where |= {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
        try:
            # redis-py would try again for a minute.
            once = Retry(NoBackoff(), 0)
            with redis.Redis(
                **where, retry=once, socket_timeout=timeout, socket_connect_timeout=timeout
            ) as client:
                client.ping()
        except redis.AuthenticationError:
            return  # who asks for a login is well
        except redis.RedisError as error:
            raise OSError(str(error)) from error

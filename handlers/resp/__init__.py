"""The RESP handler: any Redis client works on pressure queues, as sets and as lists."""

from handlers.resp.handler import RespHandler

__all__ = ["RespHandler"]

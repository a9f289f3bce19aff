"""The RESP handler: Redis clients use pressure queues as sets and as lists."""

from handlers.resp.handler import RespHandler

__all__ = ["RespHandler"]

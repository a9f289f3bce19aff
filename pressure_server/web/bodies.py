"""Bodies of requests: JSON objects whose values are checked.

aiohttp's own limit for bodies does not help: it buffers twice as much, and decompresses before it counts.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

# The limit in bytes of most bodies.
MAX_BODY = 16 << 10


async def json_object(request: web.Request, most: int = MAX_BODY) -> dict[str, Any]:
    """Return the JSON object in the body, which may have `most` bytes. Raise an HTTPException."""
    if "Content-Encoding" in request.headers:
        raise web.HTTPUnsupportedMediaType(text="send the body without Content-Encoding\n")
    too_large = f"the body may have {most} bytes\n"
    if (request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(most, text=too_large)
    body = bytearray()
    while piece := await request.content.readany():
        body += piece
        if len(body) > most:
            raise web.HTTPRequestEntityTooLarge(most, text=too_large)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object\n")
    return found


def text_in(body: dict[str, Any], name: str) -> str:
    """Return a string of the object; empty if it is missing. Raise HTTPBadRequest."""
    value = body.get(name, "")
    if not isinstance(value, str):
        raise web.HTTPBadRequest(text=f"{name} must be a string\n")
    return value

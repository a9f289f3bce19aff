"""Bodies of requests: JSON objects whose values are checked."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


async def json_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object that the request has. Raise HTTPBadRequest."""
    try:
        body = json.loads(await request.text())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body must be a JSON object\n")
    return body


def text_in(body: dict[str, Any], name: str) -> str:
    """Return a string of the object; empty if it is missing. Raise HTTPBadRequest."""
    value = body.get(name, "")
    if not isinstance(value, str):
        raise web.HTTPBadRequest(text=f"{name} must be a string\n")
    return value

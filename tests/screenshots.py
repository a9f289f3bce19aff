"""Make the screenshots of the console in docs/images: `make screenshots`. It takes a minute."""

import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import redis
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.support.paths import ROOT
from tests.support.programs import Client, Server, Valkey
from tests.support.requirements import need
from tests.support.waiters import Waiter, create

_IMAGES = ROOT / "docs/images"
_DESKTOP, _PHONE = ViewportSize(width=1280, height=720), ViewportSize(width=360, height=720)
# By the name of the file: the view, the window, and what is at the top of the window.
_SHOTS = {
    "console-overview": ("/queues", _DESKTOP, "body"),
    "console-queue": ("/queue/0/invoices", _DESKTOP, "h1"),
    "console-clients": ("/clients", _DESKTOP, "body"),
    "console-servers": ("/servers", _DESKTOP, "body"),
    "console-phone": ("/queue/0/invoices", _PHONE, "section:not([hidden])"),
}
# Seconds for which the pages are open before the pictures: the charts need a history.
_OPEN = 50
_SECTIONS = """
[queues."mails:*"]
bound = 500
max-deliveries = 5
dead-letter = "failed"
retry-delay = 10

[queues."thumbnails"]
ack = "next"
ack-ttr = "5m"
"""
# By the name of a client: the command that it has sent last.
_CLIENTS = {
    "invoicer-1": ("PRESSURE.RESERVE", "invoices", "TTR", 300),
    "invoicer-2": ("PRESSURE.RESERVE", "invoices", "TTR", 300),
    "thumbnailer": ("LPOP", "thumbnails", 2),
    "mailer": ("BLPOP", "mails:urgent", 0),
    "scheduler": ("BLPOP", "mails:urgent", "mails:digest", 0),
}


@contextmanager
def example() -> Iterator[Server]:
    """Run a server with workers, queues, clients and traffic, and another one on the same backend."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        sections = folder / "pressure.toml"
        sections.write_text(_SECTIONS)
        backend = Valkey(folder)
        stack.callback(backend.stop)
        common = ("--backend", backend.url, "--http", "http://127.0.0.1:0", "--config", str(sections))
        peer = Server(folder / "log of peer", *common)
        stack.callback(peer.stop)
        server = Server(folder / "log", *common, "--workers", "2")
        stack.callback(server.stop)
        client = stack.enter_context(server.client(client_name="web-1"))
        _fill(client)
        for one, command in _CLIENTS.items():
            _connect(stack.enter_context(Waiter(server.port)), one, command)
        stop = threading.Event()
        traffic = threading.Thread(target=_put_and_take, args=(client, stop))
        traffic.start()
        stack.callback(traffic.join)
        stack.callback(stop.set)
        yield server


def _invoice(number: int) -> str:
    return json.dumps({"invoice": number, "total": 7.5 * (number % 90)})


def _fill(client: Client) -> None:
    create(
        client, "invoices", "TYPE", "JOBS", "BOUND", 2000, "MAX-DELIVERIES", 5, "DEAD-LETTER", "failed",
        "RETRY-DELAY", 30, "RETRY-DELAY-MAX", 3600, "IN-FLIGHT", 20, "RATE", "50/1",
    )  # fmt: skip
    client.rpush("invoices", *map(_invoice, range(4100, 4160)))
    client.execute_command("PRESSURE.PUT", "invoices", _invoice(4099), "DELAY", 900)
    reserved = client.execute_command("PRESSURE.RESERVE", "invoices")
    client.execute_command("PRESSURE.BURY", "invoices", reserved[1])
    client.execute_command("PRESSURE.RESERVE", "invoices", "DETACHED", "night-shift", "TTR", 3600)
    create(client, "events", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "events", "billing")
    client.rpush("events", *range(1200))
    client.rpush("mails:welcome", *[f"to: customer{number}@example.com" for number in range(500)])
    client.rpush("thumbnails", *[f"/uploads/{number}.jpeg" for number in range(42)])
    client.rpush("imports:2025", "last one")
    client.execute_command("PRESSURE.CLOSE", "imports:2025")


def _connect(connected: Waiter, name: str, command: tuple[str | int, ...]) -> None:
    connected("CLIENT", "SETNAME", name)
    connected("CLIENT", "SETINFO", "LIB-NAME", "redis-py")
    connected.send(*command)


def _put_and_take(client: Client, stop: threading.Event) -> None:
    numbers, pace = iter(range(4160, 1_000_000)), random.Random(1)
    while not stop.wait(0.1):
        for _ in range(pace.randrange(5)):
            with suppress(redis.ResponseError):  # the queue may be full
                client.execute_command("PRESSURE.PUT", "invoices", _invoice(next(numbers)), "NOWAIT")
        for _ in range(pace.randrange(4)):
            reserved = client.execute_command("PRESSURE.RESERVE", "invoices")
            if reserved is not None:
                client.execute_command("PRESSURE.ACK", "invoices", reserved[1])
        client.rpush("mails:newsletter", *["to: reader@example.com"] * pace.randrange(1, 4))
        client.lpop("mails:newsletter", 2)


def open_page(
    browser: Browser, server: Server, view: str, window: ViewportSize, theme: Literal["light", "dark"]
) -> Page:
    """Return a page of the console when its figures have come."""
    page = browser.new_page(color_scheme=theme, viewport=window)
    page.goto(f"http://127.0.0.1:{server.port_of('http')}/#{view}")
    page.locator("main:not([aria-busy]) h1").wait_for()
    return page


def main() -> None:
    """Open each view, and take a picture of it later."""
    with example() as server, sync_playwright() as playwright:
        path = need("chromium", "chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        pages = {
            name: open_page(browser, server, view, window, "light")
            for name, (view, window, _) in _SHOTS.items()
        }
        next(iter(pages.values())).wait_for_timeout(1000 * _OPEN)
        for name, page in pages.items():
            page.locator(_SHOTS[name][2]).first.evaluate("element => element.scrollIntoView()")
            page.screenshot(path=_IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()

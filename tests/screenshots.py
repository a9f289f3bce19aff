"""Make the screenshots of the console in docs/images: `python -m tests.screenshots`."""

import json
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.paths import ROOT
from tests.support.programs import Client, Server, Valkey
from tests.support.requirements import need

_IMAGES = ROOT / "docs/images"
_DESKTOP, _PHONE = {"width": 1280, "height": 720}, {"width": 390, "height": 844}
# By the name of the file: the path of the view, the theme, the window, and what must be there.
_SHOTS = {
    "console-overview": ("", "light", _DESKTOP, "tbody tr"),
    "console-overview-dark": ("", "dark", _DESKTOP, "tbody tr"),
    "console-overview-phone": ("", "light", _PHONE, "tbody tr"),
    "console-queue": ("#/queue/0/images", "light", _DESKTOP, ".messages li"),
    "console-queue-dark": ("#/queue/0/images", "dark", _DESKTOP, ".messages li"),
    "console-clients": ("#/clients", "light", _DESKTOP, "tbody tr"),
}


def main() -> None:
    """Fill some queues, and take a picture of each view."""
    _IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        backend = Valkey(Path(folder))
        server = Server(
            Path(folder) / "log",
            *("--backend", backend.url, "--http", "http://127.0.0.1:0"),
            *("--listen", "memcached://127.0.0.1:0", "--listen", "beanstalk://127.0.0.1:0"),
        )
        stop = threading.Event()
        try:
            with server.client(client_name="web-1") as client, sync_playwright() as playwright:
                _fill(client)
                working = [
                    threading.Thread(target=_work, args=(server, stop, name))
                    for name in ("worker-1", "worker-2")
                ]
                putting = threading.Thread(target=_put, args=(client, stop))
                for thread in (*working, putting):
                    thread.start()
                path = need("chromium", "chromium")
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
                for name in _SHOTS:
                    _shoot(browser, server, name)
                browser.close()
                stop.set()
                for thread in (*working, putting):
                    thread.join()
        finally:
            stop.set()
            server.stop()
            backend.stop()


def _fill(client: Client) -> None:
    create = ("PRESSURE.CREATE",)
    client.execute_command(*create, "images", "TYPE", "JOBS", "MAX-DELIVERIES", "3")
    client.rpush("images", *[json.dumps({"image": f"cat-{n}.jpg", "sizes": [200, 800]}) for n in range(6)])
    client.rpush("images", b"\x89PNG\r\n\x1a\n\x00\x00")
    client.execute_command("PRESSURE.PUT", "images", '{"image": "later.jpg"}', "DELAY", "900")
    reserved = client.execute_command("PRESSURE.RESERVE", "images", "DETACHED", "me")
    client.execute_command("PRESSURE.BURY", "images", reserved[1], "TOKEN", "me")
    client.execute_command(*create, "invoices", "BOUND", "20", "OVERFLOW", "ERROR")
    client.rpush("invoices", *range(20))
    client.execute_command(*create, "events", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "events", "billing")
    client.rpush("events", *range(300))
    client.rpush("imports:2025", "last one")
    client.execute_command("PRESSURE.CLOSE", "imports:2025")
    client.execute_command(*create, "mails")


def _put(client: Client, stop: threading.Event) -> None:
    turn = 0
    while not stop.wait(0.05):
        turn += 1
        client.rpush("mails", *[f"to: user{n}@example.com" for n in range(1 + turn % 7 // 3)])
        if turn % 40 < 25:
            client.rpush("thumbnails", turn)
        else:
            client.lpop("thumbnails")


def _work(server: Server, stop: threading.Event, name: str) -> None:
    with server.client(client_name=name, lib_name="redis-py") as client:
        while not stop.is_set():
            client.blpop(["mails", "mails:urgent"], 1)


def _shoot(browser: Browser, server: Server, name: str) -> None:
    path, theme, window, wanted = _SHOTS[name]
    context = browser.new_context(color_scheme=theme, viewport=window)  # type: ignore[arg-type] # a literal
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{server.port_of('http')}/{path}")
    expect(page.locator(wanted).first).to_be_visible()
    page.wait_for_timeout(8000)  # the chart and the sparklines need some seconds of history
    page.screenshot(path=_IMAGES / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main()

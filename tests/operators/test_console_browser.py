"""The console in a real browser: Debian's Chromium, driven by Playwright."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.operators.test_doctor_command import kill_a_producer
from tests.support.cluster import Cluster
from tests.support.faults import lose_calls
from tests.support.guards import users_toml
from tests.support.nodes import run_in_a_thread
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.requirements import need
from tests.support.sharded import PLACEMENT, SHARDS, url_of
from tests.support.waiters import Waiter

pytestmark = pytest.mark.clients

_AXE = ROOT / "tests/support/axe/axe.min.js"
# Everything that a script of an attacker would do.
_EVIL = '"><img src=x onerror="window.harmed=1"><script>window.harmed=1</script><svg onload=window.harmed=1>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = need("chromium", "chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def console(shared_backend: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a console that needs no login."""
    log = tmp_path_factory.mktemp("console") / "log"
    server = Server(log, "--backend", shared_backend.url, "--http", "http://127.0.0.1:0")
    yield server
    server.end_well()


@pytest.fixture
def queues(backend: Valkey, console: Server) -> Iterator[Client]:
    with console.client() as connected:
        yield connected


Open = Callable[..., Page]
PHONE = 390
each_width = pytest.mark.parametrize("width", [PHONE, 1024, 1440])


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a function that opens the console of a server. At the end, no page may have had an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_one(server: Server, path: str = "", **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type] # options of Playwright
        context.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)  # a busy machine needs more than five seconds
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{server.port_of('http')}/{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    # Chromium logs each response that is not a success.
    assert [error for error in errors if not error.startswith("Failed to load resource")] == []


def _names(page: Page) -> list[str]:
    return page.locator("tbody tr td:first-child a").all_inner_texts()


def test_the_overview_is_live_sorted_and_filtered(console: Server, queues: Client, open_page: Open) -> None:
    queues.rpush("mail", "x")
    queues.rpush("job", *range(5))
    page = open_page(console)
    expect(page.locator("tbody tr")).to_have_count(2)
    assert _names(page) == ["job", "mail"]
    queues.rpush("mail", *range(2000))
    row = page.locator("tbody tr", has_text="mail")
    expect(row.locator("td[data-title=Messages]")).to_have_text("2\u202f001")
    page.get_by_role("button", name="Messages").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Messages")
    expect(page.locator("tbody tr").first).to_contain_text("mail")
    page.keyboard.press("/")
    page.keyboard.type("jo")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert _names(page) == ["job"]
    expect(page.locator(".sparkline").first).to_be_visible()


def _is_across(page: Page, selector: str) -> bool:
    """Return whether the first such element is on the screen from its left to its right edge."""
    box = page.locator(selector).first.bounding_box()
    size = page.viewport_size
    return box is not None and size is not None and 0 <= box["x"] <= box["x"] + box["width"] <= size["width"]


@each_width
def test_the_states_are_on_the_screen_beside_the_longest_name(
    console: Server, queues: Client, open_page: Open, width: int
) -> None:
    queues.execute_command("PRESSURE.CREATE", "customers:" + "x" * 500)
    queues.execute_command("PRESSURE.CLOSE", "customers:" + "x" * 500)
    page = open_page(console, viewport={"width": width, "height": 800})
    expect(page.locator(".badge.closed")).to_be_visible()
    assert _is_across(page, ".badge.closed")
    assert _is_across(page, "tbody td")
    # The other columns can be reached, and the name and the state stay.
    page.locator("td[data-title=Buried]").scroll_into_view_if_needed()
    assert _is_across(page, "td[data-title=Buried]")
    assert _is_across(page, "tbody td")
    with Waiter(console.port) as waiting:
        waiting("CLIENT", "SETNAME", "x" * 300)
        waiting.send("BLPOP", "customers", 0)
        page.keyboard.press("c")
        # Until the clients are shown, the filter is the one of the page of queues.
        expect(page.get_by_role("button", name="Protocol")).to_be_visible()
        page.get_by_label("Filter").fill("xxx")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert _is_across(page, "tbody td[data-title=State]")
        assert _is_across(page, "tbody button")


@each_width
def test_queues_and_clients_are_sorted_on_screens_of_all_widths(
    console: Server, queues: Client, open_page: Open, width: int
) -> None:
    queues.rpush("many", *range(5))
    queues.rpush("none", "x")
    queues.lpop("none")
    page = open_page(console, viewport={"width": width, "height": 800})
    expect(page.locator("tbody tr")).to_have_count(2)
    for key, expected in (("name", ["none", "many"]), ("messages", ["many", "none"])):
        button = page.locator(f"th[data-key={key}] button")
        box = button.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= (24 if width == PHONE else 10)
        button.click()
        expect(page.locator("tbody tr td:first-child a")).to_have_text(expected)
    page.keyboard.press("c")
    page.get_by_role("button", name="Protocol").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Protocol")


def test_counts_lead_to_what_they_count(console: Server, queues: Client, open_page: Open) -> None:
    for name in ("jobs", "full", "closed", "waited-for"):
        queues.execute_command("PRESSURE.CREATE", name, "TYPE", "JOBS", "BOUND", "100")
    queues.rpush("full", *range(100))
    queues.execute_command("PRESSURE.CLOSE", "closed")
    queues.rpush("jobs", *range(30))
    queues.execute_command("PRESSURE.BURY", "jobs", queues.execute_command("PRESSURE.RESERVE", "jobs")[1])
    page = open_page(console)
    names = page.locator("tbody tr td:first-child a")

    page.get_by_role("link", name="1 full queue").click()
    expect(names).to_have_text(["full"])
    expect(page.get_by_label("Show")).to_have_value("full")
    page.get_by_role("link", name="1 closed queue").click()
    expect(names).to_have_text(["closed"])
    page.reload()
    expect(names).to_have_text(["closed"])
    page.get_by_label("Show").select_option("paused")
    expect(page.locator(".pager")).to_contain_text("no queues")
    page.get_by_label("Show").select_option("all queues")
    expect(names).to_have_count(4)

    with Waiter(console.port) as waiting:
        waiting("CLIENT", "SETNAME", "ann")
        waiting.send("BLPOP", "waited-for", 0)
        page.locator("tr", has_text="waited-for").get_by_role("link", name="1 take").click()
        expect(page.locator("h1")).to_have_text("Clients")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text("ann")
    page.keyboard.press("q")
    page.get_by_role("link", name="1 buried job").click()
    expect(names).to_have_text(["jobs"])
    page.locator("td[data-title=Buried] a").click()
    expect(page.get_by_role("heading", name="Jobs: buried")).to_be_in_viewport()
    page.keyboard.press("q")
    page.locator(".totals a").click()
    expect(page.locator("h1")).to_have_text("Clients")


@each_width
def test_the_chart_of_an_idle_queue_has_a_line_that_ends_now(
    console: Server, queues: Client, open_page: Open, width: int
) -> None:
    queues.execute_command("PRESSURE.CREATE", "idle")
    page = open_page(console, "#/queue/0/idle", viewport={"width": width, "height": 800}, locale="en-US")
    chart = page.locator(".chart")
    shown = re.compile(r"Messages from (\d\d):(\d\d):(\d\d) to (\d\d):(\d\d):(\d\d): now 0, highest 0")

    def range_shown() -> tuple[int, int]:
        found = shown.fullmatch(chart.get_attribute("aria-label") or "")
        assert found
        numbers = list(map(int, found.groups()))
        first, last = (3600 * hours + 60 * m + s for hours, m, s in (numbers[:3], numbers[3:]))
        return first, last

    expect(chart).to_have_attribute("aria-label", shown)
    first, last = range_shown()
    assert (last - first) % 86400 in (60, 61)
    # An idle queue has no events, and the chart goes on.
    page.wait_for_function(
        "label => document.querySelector('.chart').getAttribute('aria-label') !== label",
        arg=chart.get_attribute("aria-label"),
    )
    assert 0 < (range_shown()[1] - last) % 86400 < 60
    # The line is drawn in all tenths of the chart.
    drawn = page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas"), over = document.querySelector(".u-over");
            const scale = canvas.width / canvas.clientWidth, left = over.offsetLeft * scale;
            const width = over.offsetWidth * scale, [r, g, b] = [0x0b, 0x5f, 0xbf];
            const tenths = new Set();
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            for (let at = 0; at < data.length; at += 4) {
                if (data[at] !== r || data[at + 1] !== g || data[at + 2] !== b) continue;
                tenths.add(Math.floor((10 * ((at / 4) % canvas.width - left)) / width));
            }
            return [...tenths].filter((tenth) => tenth >= 0 && tenth < 10).length;
        }"""
    )
    assert drawn == 10


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_times_and_numbers_are_those_of_no_country(
    console: Server, queues: Client, open_page: Open, locale: str
) -> None:
    queues.rpush("q", *range(1234))
    page = open_page(console, "#/queue/0/q", locale=locale)
    page.locator(".u-over").hover()
    values = page.locator(".u-legend .u-value")
    expect(values.first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(values.nth(1)).to_have_text("1\u202f234")


def test_settings_have_the_names_of_their_options(console: Server, queues: Client, open_page: Open) -> None:
    queues.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    queues.rpush("jobs", "once", "never")
    queues.execute_command("PRESSURE.RESERVE", "jobs")
    page = open_page(console, "#/queue/0/jobs")
    expect(page.locator(".messages li", has_text="delivered once")).to_have_count(1)
    expect(page.locator(".messages li", has_text="delivered 0 times")).to_have_count(1)
    page.get_by_role("button", name="Alter").click()
    labels = page.get_by_role("dialog").locator("label").all_inner_texts()
    page_of_commands = (ROOT / "docs/reference/commands.md").read_text()
    (syntax,) = re.findall(r"^\| `PRESSURE\.ALTER key ([^`]*)`", page_of_commands, re.MULTILINE)
    assert labels
    assert {label.upper() for label in labels} <= set(re.findall(r"[A-Z-]+", syntax))
    page.keyboard.press("Escape")
    figures = page.locator(".figures dt").all_inner_texts()
    assert {"bound", "overflow", "max-bytes", "max-deliveries", "dead-letter", "unique"} <= set(figures)
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete 1 message of jobs?")


@each_width
def test_a_page_whose_backend_is_away_says_so_everywhere(
    start_server: StartServer, start_valkey: StartValkey, open_page: Open, width: int
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, "--http", "http://127.0.0.1:0")
    with server.client() as client:
        client.rpush("q", "x")
    paths = {"": "tbody td", "#/queue/0/q": ".figures dd", "#/clients": "h1"}
    size = {"width": width, "height": 800}
    pages = [open_page(server, path, viewport=size, bypass_csp=True) for path in paths]
    for page, element in zip(pages, paths.values(), strict=True):
        expect(page.locator(element).first).to_be_visible()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#outage")).to_be_hidden()
    valkey.stop()
    pages.append(open_page(server, "#/queue/0/q", viewport=size, bypass_csp=True))
    for page, has_old_figures in zip(pages, (True, True, False, False), strict=True):
        expect(page.locator("#connection")).to_have_text("not ready")
        expect(page.locator("#connection")).to_have_class("bad")
        text = r"Not ready: the backend is away: [^.]*\.?.*\."
        since = r" The figures are from \d\d:\d\d:\d\d\." if has_old_figures else ""
        expect(page.locator("#outage")).to_have_text(re.compile(f"^{text}{since}$"))
        expect(page.locator("main.stale")).to_have_count(int(has_old_figures))
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        _assert_accessible(page, page.url)
    valkey.start()
    for page in pages:
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#outage")).to_be_hidden()
        expect(page.locator("main.stale")).to_have_count(0)


def test_a_queue_is_shown_and_changed(console: Server, queues: Client, open_page: Open) -> None:
    queues.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    queues.rpush("jobs", '{"a": {"b": [1, 2]}}', b"\x00\xffbinary", "plain")
    page = open_page(console)
    page.locator("tbody a", has_text="jobs").click()
    expect(page.locator("h1")).to_have_text("jobs")
    expect(page.locator(".messages li")).to_have_count(3)
    page.locator("summary").click()
    expect(page.locator("details pre")).to_contain_text('"b": [')
    expect(page.locator("main")).to_contain_text("00 ff 62 69 6e 61 72 79")
    expect(page.locator("canvas")).to_be_visible()

    def act(name: str, confirm: str, **values: str) -> None:
        page.get_by_role("button", name=name, exact=True).click()
        dialog = page.get_by_role("dialog")
        for label, value in values.items():
            dialog.get_by_label(label.replace("_", " ")).fill(value)
        dialog.get_by_role("button", name=confirm, exact=True).click()

    result = page.locator("#results")
    act("Put a message", "Put", Message="from the console")
    expect(result).to_have_text("the message was put")
    expect(page.locator("main")).to_contain_text("from the console")
    act("Bury the next job", "Bury")
    expect(result).to_have_text("job 1 was buried")
    expect(page.get_by_role("heading", name="Jobs: buried")).to_be_visible()
    act("Kick jobs", "Kick", Most_jobs="3")
    expect(result).to_have_text("jobs kicked: 1")
    act("Pause", "Pause", Seconds="100")
    expect(page.locator(".badge.paused")).to_be_visible()
    act("Pause", "Pause", Seconds="0")
    expect(page.locator(".badge.paused")).to_have_count(0)
    act("Alter", "Alter", Bound="4")
    expect(page.locator(".badge.full")).to_be_visible()
    act("Take one", "Take")
    expect(page.get_by_role("dialog")).to_contain_text('{"a": {"b": [1, 2]}}')
    with page.expect_download() as download:
        page.get_by_role("link", name="Save it as a file").click()
    assert download.value.path().read_bytes() == b'{"a": {"b": [1, 2]}}'
    page.keyboard.press("Escape")
    act("Close", "Close the queue")
    expect(page.locator(".badge.closed")).to_be_visible()
    expect(page.get_by_role("button", name="Close", exact=True)).to_have_count(0)
    act("Purge", "Delete the messages")
    expect(result).to_have_text("messages deleted: 3")
    act("Delete", "Delete the queue")
    expect(page.locator("h1")).to_have_text("Queues")
    assert not queues.exists("jobs")


def test_a_message_of_any_bytes_can_be_put(console: Server, queues: Client, open_page: Open) -> None:
    queues.execute_command("PRESSURE.CREATE", "q", "TYPE", "JOBS")
    page = open_page(console, "#/queue/0/q")
    page.get_by_role("button", name="Put a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Message").fill("00 ff\n0d0a")
    dialog.get_by_label("Written as").select_option("hex")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_role("button", name="Put", exact=True).click()
    expect(page.locator(".messages li")).to_contain_text("priority 7")
    expect(page.locator(".messages pre")).to_contain_text("00 ff 0d 0a")
    assert queues.execute_command("PRESSURE.PEEK", "q", "READY")[1] == b"\x00\xff\r\n"


def test_focus_stays_on_a_message_while_the_page_changes(
    console: Server, queues: Client, open_page: Open
) -> None:
    queues.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS")
    queues.rpush("jobs", "first", '{"a": 1}', "last")
    page = open_page(console, "#/queue/0/jobs")
    page.locator("summary").click()
    expect(page.locator("summary")).to_be_focused()
    age = page.locator(".messages .muted").last
    before = age.inner_text()
    expect(age).not_to_have_text(before)
    queues.execute_command("PRESSURE.RESERVE", "jobs")
    expect(page.get_by_role("heading", name="Jobs: reserved")).to_be_visible()
    expect(page.locator("summary")).to_be_focused()
    expect(page.locator("details")).to_have_attribute("open", "")


def test_a_page_in_the_background_does_not_listen(console: Server, queues: Client, open_page: Open) -> None:
    def hide(is_hidden: str) -> None:
        page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}})"
        )
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    page = open_page(console)
    expect(page.locator("#connection")).to_have_text("live")
    with page.expect_event("requestfailed"):
        hide("true")
    queues.rpush("new", "x")
    page.wait_for_timeout(2500)
    expect(page.locator("tbody a")).to_have_count(0)
    hide("false")
    expect(page.locator("tbody a")).to_have_text("new")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("#/queue/9/q", "this database is not in use"), ("#/queue/0/x%3Abound", "this cannot be a queue")],
)
def test_a_view_that_is_refused_says_why(
    console: Server, queues: Client, open_page: Open, path: str, reason: str
) -> None:
    page = open_page(console, path)
    expect(page.locator("#connection")).to_have_text(reason)
    page.keyboard.press("q")
    expect(page.locator("#connection")).to_have_text("live")


def test_nothing_is_done_before_it_is_confirmed(console: Server, queues: Client, open_page: Open) -> None:
    queues.rpush("q", "x")
    page = open_page(console, "#/queue/0/q")
    for name in ("Take one", "Purge", "Close", "Delete"):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name=name, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert queues.lrange("q", 0, -1) == [b"x"]


def test_a_queue_is_created(console: Server, queues: Client, open_page: Open) -> None:
    page = open_page(console)
    page.get_by_role("button", name="Create a queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("new queue/ü")
    dialog.get_by_label("Type").select_option("LOG")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#results")).to_have_text("the queue was created")
    expect(page.locator("tbody a")).to_have_text("new queue/ü")
    assert queues.execute_command("PRESSURE.EXISTS", "new queue/ü") == 1


def test_a_stuck_queue_is_found_and_repaired(
    console: Server, queues: Client, direct: Client, open_page: Open
) -> None:
    kill_a_producer(direct)
    page = open_page(console)
    expect(page.locator(".badge.problem")).to_be_visible(timeout=30_000)
    page.locator("tbody a").click()
    expect(page.locator(".note").first).to_contain_text("a native producer died")
    page.get_by_role("button", name="Repair").click()
    page.get_by_role("dialog").get_by_role("button", name="Repair", exact=True).click()
    expect(page.locator("#results")).to_contain_text("gave the producer role back", timeout=30_000)
    expect(page.locator(".badge.problem")).to_have_count(0, timeout=30_000)


def test_groups_lead_to_their_queues(console: Server, queues: Client, open_page: Open) -> None:
    queues.execute_command("PRESSURE.CREATE", "log", "TYPE", "LOG")
    queues.execute_command("PRESSURE.GROUP", "CREATE", "log", "billing")
    queues.rpush("log", "a", "b")
    page = open_page(console, "#/queue/0/log")
    page.get_by_role("link", name="billing").click()
    expect(page.locator("h1")).to_have_text("log+billing")


def test_clients_are_shown_and_disconnected(console: Server, queues: Client, open_page: Open) -> None:
    page = open_page(console)
    page.keyboard.press("c")
    ended = threading.Event()

    def take() -> None:
        with console.client(client_name="ann") as other:
            try:
                other.blpop(["waited-for"], 30)
            except Exception:  # it is disconnected
                ended.set()

    taking = threading.Thread(target=take)
    taking.start()
    page.get_by_label("Filter").fill("ann")
    row = page.locator("tbody tr", has_text="waited-for")
    expect(row).to_contain_text("blpop")
    button = row.get_by_role("button", name=re.compile("Disconnect client"))
    expect(button).to_be_in_viewport(ratio=1)
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Disconnect", exact=True).click()
    expect(page.locator("#results")).to_contain_text("was disconnected")
    expect(page.locator("tbody tr")).to_have_count(0)
    taking.join(20)
    assert ended.is_set()


def test_nothing_that_clients_choose_becomes_a_script(
    console: Server, queues: Client, open_page: Open
) -> None:
    name = f"queue {_EVIL}"
    queues.rpush(name, _EVIL, '{"a": "' + _EVIL.replace('"', "'") + '"}')
    with console.client(client_name="<img/src=x/onerror=window.harmed=1>") as other:
        other.execute_command("CLIENT", "SETINFO", "LIB-NAME", "<b>")
        page = open_page(console)
        expect(page.locator("tbody a")).to_contain_text("<script>")
        page.locator("tbody a").click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator(".messages pre").first).to_have_text(_EVIL)
        page.get_by_role("button", name="Take one").click()
        page.get_by_role("dialog").get_by_role("button", name="Take", exact=True).click()
        expect(page.get_by_role("dialog").locator("pre")).to_have_text(_EVIL)
        page.keyboard.press("Escape")
        page.keyboard.press("c")
        expect(page.locator("h1")).to_have_text("Clients")
        expect(page.locator("tbody")).to_contain_text("onerror=window.harmed")
        assert page.evaluate("window.harmed") is None
        assert page.locator("main img, main script, main svg[onload]").count() == 0


@pytest.fixture
def guarded(start_server: StartServer, backend: Valkey, tmp_path: Path) -> Server:
    users = {
        "root": ("secret", ["*"], ["put", "get", "read", "administer"]),
        "reader": ("secret", ["mine*"], ["read"]),
    }
    (tmp_path / "users.toml").write_text(users_toml(users))
    server = start_server(
        *("--backend", backend.url, "--http", "http://127.0.0.1:0", "--users", str(tmp_path / "users.toml"))
    )
    with server.client(username="root", password="secret") as client:
        client.rpush("mine", "x")
        client.rpush("other", "x")
    return server


def test_a_login_shows_what_the_user_may_see_and_do(guarded: Server, open_page: Open) -> None:
    page = open_page(guarded)

    def log_in(user: str, password: str) -> None:
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()

    log_in("reader", "wrong")
    expect(page.locator(".login .failed")).to_have_text("The user or the password is wrong.")
    log_in("reader", "secret")
    expect(page.locator("tbody a")).to_have_text(["mine"])
    expect(page.get_by_role("link", name="Clients")).to_be_hidden()
    expect(page.get_by_role("button", name="Create a queue")).to_have_count(0)
    page.locator("tbody a").click()
    expect(page.locator(".messages li")).to_have_count(1)
    expect(page.locator("main .buttons button")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    log_in("root", "secret")
    expect(page.locator("main .buttons button")).not_to_have_count(0)
    page.keyboard.press("q")
    expect(page.locator("tbody a")).to_have_text(["mine", "other"])


def test_the_login_form_returns_when_the_session_ends(guarded: Server, open_page: Open) -> None:
    page = open_page(guarded)
    page.get_by_label("User").fill("root")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    headers = "{'Content-Type': 'application/json'}"
    page.evaluate(f"fetch('/api/logout', {{method: 'POST', body: '{{}}', headers: {headers}}})")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_everything_can_be_done_with_the_keyboard(console: Server, queues: Client, open_page: Open) -> None:
    for name in ("a", "b", "c"):
        queues.rpush(name, "x")
    page = open_page(console)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("tbody a", has_text="b")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("b")
    button = page.get_by_role("button", name="Delete", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("go to the filter")
    page.keyboard.press("Escape")
    page.keyboard.press("q")
    expect(page.locator("h1")).to_have_text("Queues")


def _assert_accessible(page: Page, view: str) -> None:
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.add_script_tag(path=_AXE)
    found = page.evaluate("axe.run().then(results => results.violations)")
    assert [(view, one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, PHONE])
def test_axe_finds_no_violation(
    console: Server, queues: Client, open_page: Open, theme: str, width: int
) -> None:
    queues.execute_command("PRESSURE.CREATE", "jobs", "TYPE", "JOBS", "BOUND", "2")
    queues.rpush("jobs", '{"a": 1}', b"\x00\xff")
    queues.execute_command("PRESSURE.CLOSE", "jobs")
    queues.execute_command("PRESSURE.CREATE", "log", "TYPE", "LOG")
    queues.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    queues.rpush("log", "a")
    page = open_page(console, color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True)

    def check(view: str) -> None:
        _assert_accessible(page, view)

    expect(page.locator("tbody tr")).to_have_count(3)
    check("overview")
    page.locator("tbody a", has_text="jobs").click()
    expect(page.locator(".messages li")).to_have_count(2)
    check("queue")
    page.get_by_role("button", name="Alter").click()
    check("dialog")
    page.keyboard.press("Escape")
    page.goto(page.url.partition("#")[0] + "#/queue/0/log")
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    check("log")
    page.keyboard.press("c")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    check("clients")
    # Nothing is wider than the page.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_axe_finds_no_violation_in_the_login_form(guarded: Server, open_page: Open) -> None:
    page = open_page(guarded, bypass_csp=True)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.add_script_tag(path=_AXE)
    assert page.evaluate("axe.run().then(results => results.violations.map(one => one.id))") == []


def test_the_theme_is_kept(console: Server, queues: Client, open_page: Open) -> None:
    page = open_page(console, color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate(colour)
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate(colour) == dark


def test_the_page_reconnects_after_a_restart(
    start_server: StartServer, backend: Valkey, open_page: Open
) -> None:
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0")
    page = open_page(server)
    expect(page.locator("#connection")).to_have_text("live")
    port = server.port_of("http")
    server.stop()
    expect(page.locator("#connection")).to_contain_text("connection lost")
    again = start_server("--backend", backend.url, "--http", f"http://127.0.0.1:{port}")
    expect(page.locator("#connection")).to_have_text("live")
    with again.client() as client:
        client.rpush("after", "x")
        expect(page.locator("tbody a")).to_have_text("after")


def test_calls_that_the_backend_lost_are_shown(
    start_server: StartServer, start_valkey: StartValkey, open_page: Open
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, "--http", "http://127.0.0.1:0")
    page = open_page(server)
    expect(page.locator(".totals")).to_be_visible()
    expect(page.locator(".attention")).to_have_count(0)
    lose_calls(server, valkey, 3)
    expect(page.locator(".attention")).to_have_text("3 answered calls lost by the backend")


def test_the_shards_of_a_cluster_are_shown(
    start_server: StartServer, open_page: Open, tmp_path: Path
) -> None:
    with Cluster(tmp_path, full_coverage=False).started() as cluster:
        server = start_server("--backend", url_of(cluster), "--http", "http://127.0.0.1:0")
        page = open_page(server)
        shards = page.locator("details.shards")
        expect(shards.locator("summary")).to_have_text(f"{SHARDS} shards")
        shards.locator("summary").click()
        last = shards.locator("tbody tr").last
        prefix = PLACEMENT.prefixes[-1].decode()
        node = run_in_a_thread(cluster.master_of(prefix))
        shown = last.locator("td").all_inner_texts()
        assert shown[:-1] == [str(SHARDS - 1), prefix, f"redis://127.0.0.1:{node.port}", "ready"]
        names = [f"q{number}" for number in range(2 * SHARDS)]
        with server.client() as client:
            for name in names:
                client.rpush(name, "x")
        expect(page.locator("tbody a")).to_have_count(len(names))
        node.kill()
        expect(shards.locator("summary")).to_have_text(re.compile(rf"{SHARDS} shards, \d not ready"))
        expect(last.locator(".badge")).to_have_text("not ready")
        # The figures of other queues stay live.
        old = page.locator(".badge", has_text="old")
        expect(old.first).to_be_visible()
        assert 0 < old.count() < len(names)
        expect(page.locator("#connection")).to_have_text("live")
        # It is open without a click in a new page, too.
        expect(open_page(server).locator("details.shards[open]")).to_be_visible()


def test_errors_of_scripts_are_shown_and_reported(
    start_server: StartServer, backend: Valkey, browser: Browser
) -> None:
    server = start_server("--backend", backend.url, "--http", "http://127.0.0.1:0")
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.port_of('http')}/")
    expect(page.locator("h1")).to_have_text("Queues")
    page.evaluate("setTimeout(() => { throw new Error('broken') }, 0)")
    expect(page.locator("#errors")).to_contain_text("broken")
    wait_for(lambda: "an error in the console's page: Uncaught Error: broken" in server.log, "the report")
    page.close()


def test_the_page_needs_nothing_from_elsewhere(console: Server, queues: Client, open_page: Open) -> None:
    page = open_page(console)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    expect(page.locator("h1")).to_have_text("Queues")
    page.goto(page.url.partition("#")[0] + "#/queue/0/q")
    expect(page.locator("h1")).to_have_text("q")
    assert asked
    assert all(url.startswith(f"http://127.0.0.1:{console.port_of('http')}/") for url in asked)

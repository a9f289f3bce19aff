"""The console in a real browser: Debian's Chromium, driven by Playwright."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from pressure_server.queues.operations.queue_options import ALTER_OPTIONS, CREATE_OPTIONS, IF_NOT_EXISTS
from tests.operators.conftest import HTTP
from tests.operators.test_doctor_command import kill_a_producer
from tests.support.cluster import Cluster
from tests.support.faults import lose_calls
from tests.support.module_servers import module_server
from tests.support.nodes import run_in_a_thread
from tests.support.paths import ROOT
from tests.support.programs import Client, Server, StartServer, StartValkey, Valkey, wait_for
from tests.support.sharded import PLACEMENT, SHARDS, url_of
from tests.support.waiters import Waiter, create

pytestmark = pytest.mark.clients

_AXE = ROOT / "tests/support/axe/axe.min.js"
# Everything that a script of an attacker would do.
_EVIL = '"><img src=x onerror="window.harmed=1"><script>window.harmed=1</script><svg onload=window.harmed=1>'

Open = Callable[..., Page]
PHONE = 320
each_width = pytest.mark.parametrize("width", [PHONE, 1024, 1440])
shared_server = module_server(*HTTP)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Return a function that opens the console of a server.

    At the end, no page may have had an error, or have asked another server for anything.
    """
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_one(server: Server, path: str = "", width: int = 1280, **options: object) -> Page:
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, **options)  # type: ignore[arg-type] # Playwright's own
        context.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)  # a busy machine needs more than five seconds
        contexts.append(context)
        page, own = context.new_page(), f"http://127.0.0.1:{server.port_of('http')}/"

        def note_request(url: str) -> None:
            if not url.startswith((own, "blob:", "data:")):
                errors.append(f"a request of {url}")

        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: note_request(request.url))
        # If a test fails, this tells whether it was a script that did not come.
        page.on("requestfailed", lambda request: print(f"{request.url}: {request.failure}"))
        page.goto(own + path)
        return page

    yield open_one
    for context in contexts:
        context.close()
    # Chromium logs each response that is not a success.
    assert [error for error in errors if not error.startswith("Failed to load resource")] == []


@pytest.fixture
def view(server: Server, open_page: Open) -> Open:
    """Return a function that opens a page of the shared server's console."""
    return partial(open_page, server)


def _go(page: Page, path: str) -> None:
    page.goto(page.url.partition("#")[0] + path)


def _log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def _fits(page: Page) -> bool:
    """Return whether nothing is wider than the page."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def _assert_accessible(page: Page, view: str) -> None:
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.add_script_tag(path=_AXE)
    found = page.evaluate("axe.run().then(results => results.violations)")
    assert [(view, one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
    assert _fits(page), view


def test_the_overview_is_live_and_filtered(client: Client, view: Open) -> None:
    client.rpush("mail", "x")
    client.rpush("job", *range(5))
    page = view()
    names = page.locator("tbody tr td:first-child a")
    expect(names).to_have_text(["job", "mail"])
    client.rpush("mail", *range(2000))
    row = page.locator("tbody tr", has_text="mail")
    expect(row.locator("td[data-title=Messages]")).to_have_text("2\u202f001")
    page.keyboard.press("/")
    page.keyboard.type("jo")
    expect(names).to_have_text(["job"])
    expect(page.locator(".sparkline").first).to_be_visible()


def _is_across(page: Page, selector: str) -> bool:
    """Return whether the first such element is on the screen from its left to its right edge."""
    box = page.locator(selector).first.bounding_box()
    size = page.viewport_size
    return box is not None and size is not None and 0 <= box["x"] <= box["x"] + box["width"] <= size["width"]


@each_width
def test_tables_are_sorted_and_show_their_states_on_screens_of_all_widths(
    server: Server, client: Client, view: Open, width: int
) -> None:
    longest = "customers:" + "x" * 500
    create(client, longest)
    client.execute_command("PRESSURE.CLOSE", longest)
    client.rpush("a few", *range(5))
    page = view(width=width)
    expect(page.locator(".badge.closed")).to_be_visible()
    assert _is_across(page, ".badge.closed")
    assert _is_across(page, "tbody td")
    # The other columns can be reached, and the name and the state stay.
    page.locator("td[data-title=Buried]").first.scroll_into_view_if_needed()
    assert _is_across(page, "td[data-title=Buried]")
    assert _is_across(page, "tbody td")
    for key, first in (("name", "customers:x"), ("messages", "a few")):
        button = page.locator(f"th[data-key={key}] button")
        box = button.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= (24 if width == PHONE else 10)
        button.click()
        expect(page.locator("tbody tr td:first-child a").first).to_contain_text(first)
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Messages")
    with Waiter(server.port) as waiting:
        waiting("CLIENT", "SETNAME", "x" * 300)
        waiting.send("BLPOP", "customers", 0)
        page.keyboard.press("c")
        # Until the clients are shown, the filter is the one of the page of queues.
        expect(page.get_by_role("button", name="Protocol")).to_be_visible()
        page.get_by_label("Filter").fill("xxx")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert _is_across(page, "tbody td[data-title=State]")
        assert _is_across(page, "tbody button")
        page.get_by_role("button", name="Protocol").click()
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Protocol")


def test_counts_lead_to_what_they_count(server: Server, client: Client, view: Open) -> None:
    for name in ("jobs", "full", "closed", "waited-for"):
        create(client, name, "TYPE", "JOBS", "BOUND", "100")
    client.rpush("full", *range(100))
    client.execute_command("PRESSURE.CLOSE", "closed")
    client.rpush("jobs", *range(30))
    client.execute_command("PRESSURE.BURY", "jobs", client.execute_command("PRESSURE.RESERVE", "jobs")[1])
    page = view()
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

    with Waiter(server.port) as waiting:
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
    page.get_by_label("Show").select_option("with reserved jobs")
    expect(names).to_have_count(0)
    page.keyboard.press("q")
    page.locator(".totals a").click()
    expect(page.locator("h1")).to_have_text("Clients")


@each_width
def test_the_chart_of_an_idle_queue_has_a_line_that_ends_now(client: Client, view: Open, width: int) -> None:
    create(client, "idle")
    page = view("#/queue/0/idle", width=width, locale="en-US")
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
    assert 60 <= (last - first) % 86400 < 65  # a busy machine may count late
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
def test_times_and_numbers_are_those_of_no_country(client: Client, view: Open, locale: str) -> None:
    # The chart begins with what the server remembers of this name, so no other test has used it.
    client.rpush(locale, *range(1234))
    page = view(f"#/queue/0/{locale}", locale=locale)
    page.locator(".u-over").hover()
    values = page.locator(".u-legend .u-value")
    expect(values.first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(values.nth(1)).to_have_text("1\u202f234")


def test_settings_have_the_names_and_values_of_their_options(client: Client, view: Open) -> None:
    policies = {
        "RETRY-DELAY": "5", "RETRY-DELAY-MAX": "3600", "IN-FLIGHT": "9", "RATE": "10/0.5", "ACK": "NEXT",
        "ACK-TTR": "90", "MAX-DELIVERIES": "3", "DEAD-LETTER": "the letters/ü",
    }  # fmt: skip
    create(client, "jobs", *chain.from_iterable(policies.items()))
    create(client, "the letters/ü", "TYPE", "JOBS")
    client.rpush("jobs", "once", "never")
    client.execute_command("PRESSURE.BURY", "jobs", client.execute_command("PRESSURE.RESERVE", "jobs")[1])
    page = view("#/queue/0/jobs")
    expect(page.locator(".messages li", has_text="delivered once")).to_have_count(1)
    expect(page.locator(".messages li", has_text="delivered 0 times")).to_have_count(1)
    expect(page.locator(".badge.ack-next")).to_be_visible()
    names = page.locator(".figures dt").all_inner_texts()
    figures = dict(zip(names, page.locator(".figures dd").all_inner_texts(), strict=True))
    expected = {
        "retry-delay": "5 s", "retry-delay-max": "1 h 0 min", "in-flight": "9", "rate": "10/0.5",
        "ack": "next", "ack-ttr": "1 min 30 s", "max-deliveries": "3", "dead-letter": "the letters/ü",
    }  # fmt: skip
    assert expected.items() <= figures.items()
    assert CREATE_OPTIONS.keys() - {name.upper().encode() for name in names} == {IF_NOT_EXISTS, b"TYPE"}
    page.get_by_role("button", name="Alter").click()
    labels = page.get_by_role("dialog").locator("label").all_inner_texts()
    assert {label.upper().encode() for label in labels} == ALTER_OPTIONS.keys()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_contain_text("Delete 1 message of jobs?")
    page.keyboard.press("Escape")
    link = page.get_by_role("link", name="the letters/ü")
    link.focus()
    oldest = page.locator(".figures div", has_text="oldest").locator("dd")
    expect(oldest).not_to_have_text(oldest.inner_text())
    expect(link).to_be_focused()
    link.click()
    expect(page.locator("h1")).to_have_text("the letters/ü")


@each_width
def test_reserved_jobs_lead_to_their_clients_and_back(
    server: Server, client: Client, view: Open, width: int
) -> None:
    create(client, "kept", "ACK", "NEXT")
    client.rpush("kept", "a message", "another")
    with server.client(client_name="ann") as ann:
        assert ann.lpop("kept") == b"a message"
        page = view("#/queue/0/kept?show=reserved", width=width)
        row = page.get_by_role("table", name="Reserved jobs").locator("tbody tr")
        expect(row).to_have_count(1)
        expect(page.get_by_role("heading", name="Jobs: reserved")).to_be_in_viewport()
        expect(row.locator("td[data-title=Name]")).to_have_text("ann")
        expect(row.locator("td[data-title=Since]")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d, \d+ s ago$"))
        expect(row.locator("td[data-title=Until]")).to_have_text("the connection ends")
        expect(row.locator("td[data-title=Message]")).to_contain_text("a message")
        row.get_by_role("link", name=f"client {ann.client_id()}").click()
        expect(page.locator("h1")).to_have_text("Clients")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.locator("tbody td[data-title='Reserved from'] a").click()
        expect(page.locator("h1")).to_have_text("kept")
        assert _fits(page)
    # The connection has ended.
    expect(row).to_have_count(0)


@each_width
def test_jobs_are_paged_by_the_keyboard(client: Client, view: Open, width: int) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", *[f"message {number}" for number in range(41)])
    page = view("#/queue/0/jobs", width=width)
    section = page.locator("section", has=page.get_by_role("heading", name="Jobs: ready"))
    pages = section.get_by_role("navigation", name="Pages of ready jobs")
    expect(pages).to_contain_text("1 to 20 of 41 ready jobs")
    pages.get_by_role("button", name="Next").focus()
    page.keyboard.press("Enter")
    expect(pages).to_contain_text("21 to 40 of 41")
    expect(section.locator("pre").first).to_have_text("message 20")
    page.keyboard.press("Enter")
    expect(pages).to_contain_text("41 to 41 of 41")
    # The button that has been pressed has no further page, and the focus must not be lost.
    expect(pages.get_by_role("button", name="Previous")).to_be_focused()
    page.keyboard.press("Enter")
    expect(pages).to_contain_text("21 to 40 of 41")
    client.execute_command("PRESSURE.PURGE", "jobs")
    expect(section).to_be_hidden()


@pytest.mark.parametrize("width", [PHONE, 1440])
def test_a_page_whose_backend_is_away_says_so_everywhere(
    start_server: StartServer, start_valkey: StartValkey, open_page: Open, width: int
) -> None:
    valkey = start_valkey()
    server = start_server("--backend", valkey.url, *HTTP)
    with server.client() as client:
        client.rpush("q", "x")
    paths = {"": "tbody td", "#/queue/0/q": ".figures dd", "#/clients": "h1", "#/servers": "h1"}
    pages = [open_page(server, path, width=width, bypass_csp=True) for path in paths]
    for page, element in zip(pages, paths.values(), strict=True):
        expect(page.locator(element).first).to_be_visible()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#outage")).to_be_hidden()
    valkey.stop()
    pages.append(open_page(server, "#/queue/0/q", width=width, bypass_csp=True))
    for page, has_old_figures in zip(pages, (True, True, False, False, False), strict=True):
        expect(page.locator("#connection")).to_have_text("not ready")
        expect(page.locator("#connection")).to_have_class("bad")
        text = r"Not ready: the backend is away: [^.]*\.?.*\."
        since = r" The figures are from \d\d:\d\d:\d\d\." if has_old_figures else ""
        expect(page.locator("#outage")).to_have_text(re.compile(f"^{text}{since}$"))
        expect(page.locator("main.stale")).to_have_count(int(has_old_figures))
        _assert_accessible(page, page.url)
    valkey.start()
    for page in pages:
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#outage")).to_be_hidden()
        expect(page.locator("main.stale")).to_have_count(0)


def test_a_queue_is_shown_and_changed(client: Client, view: Open) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", '{"a": {"b": [1, 2]}}', b"\x00\xffbinary", "plain")
    page = view()
    page.locator("tbody a", has_text="jobs").click()
    expect(page.locator("h1")).to_have_text("jobs")
    expect(page.locator(".messages li")).to_have_count(3)
    page.locator("summary").click()
    expect(page.locator("details pre")).to_contain_text('"b": [')
    expect(page.locator("main")).to_contain_text("00 ff 62 69 6e 61 72 79")
    expect(page.locator("canvas")).to_be_visible()

    def act(name: str, confirm: str, **values: str) -> None:
        """Do an action, which begins only when it is confirmed."""
        button, dialog = page.get_by_role("button", name=name, exact=True), page.get_by_role("dialog")
        button.click()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        button.click()
        dialog.get_by_role("button", name="Cancel").click()
        button.click()
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
    assert not client.exists("jobs")


def test_a_message_of_any_bytes_can_be_put(client: Client, view: Open) -> None:
    create(client, "q", "TYPE", "JOBS")
    page = view("#/queue/0/q")
    page.get_by_role("button", name="Put a message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Message").fill("00 ff\n0d0a")
    dialog.get_by_label("Written as").select_option("hex")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_role("button", name="Put", exact=True).click()
    expect(page.locator(".messages li")).to_contain_text("priority 7")
    expect(page.locator(".messages pre")).to_contain_text("00 ff 0d 0a")
    assert client.execute_command("PRESSURE.PEEK", "q", "READY")[1] == b"\x00\xff\r\n"


def test_folded_json_has_the_values_of_the_message(client: Client, view: Open) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", _COMPACT)
    page = view("#/queue/0/jobs")
    page.locator("summary").click()
    assert page.locator("details pre").inner_text() == _FOLDED


_COMPACT = r' {"n":12345678901234567890, "n" : 1.10,"none":[ ],"s":"a: [1,\"  2\"]","list":[{ },-1E5]}'
_FOLDED = r"""{
  "n": 12345678901234567890,
  "n": 1.10,
  "none": [],
  "s": "a: [1,\"  2\"]",
  "list": [
    {},
    -1E5
  ]
}"""


def test_focus_stays_on_a_message_while_the_page_changes(client: Client, view: Open) -> None:
    create(client, "jobs", "TYPE", "JOBS")
    client.rpush("jobs", "first", '{"a": 1}', "last")
    page = view("#/queue/0/jobs")
    page.locator("summary").click()
    expect(page.locator("summary")).to_be_focused()
    age = page.locator(".messages .muted").last
    before = age.inner_text()
    expect(age).not_to_have_text(before)
    client.execute_command("PRESSURE.RESERVE", "jobs")
    expect(page.get_by_role("heading", name="Jobs: reserved")).to_be_visible()
    expect(page.locator("summary")).to_be_focused()
    expect(page.locator("details")).to_have_attribute("open", "")


def test_a_page_in_the_background_does_not_listen(client: Client, view: Open) -> None:
    def hide(is_hidden: str) -> None:
        page.evaluate(
            f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}})"
        )
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    page = view()
    expect(page.locator("#connection")).to_have_text("live")
    with page.expect_event("requestfailed"):
        hide("true")
    client.rpush("new", "x")
    page.wait_for_timeout(2500)
    expect(page.locator("tbody a")).to_have_count(0)
    hide("false")
    expect(page.locator("tbody a")).to_have_text("new")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("#/queue/9/q", "this database is not in use"), ("#/queue/0/x%3Abound", "this cannot be a queue")],
)
def test_a_view_that_is_refused_says_why(client: Client, view: Open, path: str, reason: str) -> None:
    page = view(path)
    expect(page.locator("#connection")).to_have_text(reason)
    page.keyboard.press("q")
    expect(page.locator("#connection")).to_have_text("live")


def test_a_queue_is_created_and_its_groups_lead_to_their_queues(client: Client, view: Open) -> None:
    page = view()
    page.get_by_role("button", name="Create a queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("new queue/ü")
    dialog.get_by_label("Type").select_option("LOG")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#results")).to_have_text("the queue was created")
    client.execute_command("PRESSURE.GROUP", "CREATE", "new queue/ü", "billing")
    page.locator("tbody a", has_text=re.compile("^new queue/ü$")).click()
    page.get_by_role("link", name="billing").click()
    expect(page.locator("h1")).to_have_text("new queue/ü+billing")


def test_a_stuck_queue_is_found_and_repaired(client: Client, direct: Client, view: Open) -> None:
    kill_a_producer(direct)
    page = view()
    expect(page.locator(".badge.problem")).to_be_visible(timeout=30_000)
    page.locator("tbody a").click()
    expect(page.locator(".note").first).to_contain_text("a native producer died")
    page.get_by_role("button", name="Repair").click()
    page.get_by_role("dialog").get_by_role("button", name="Repair", exact=True).click()
    expect(page.locator("#results")).to_contain_text("gave the producer role back", timeout=30_000)
    expect(page.locator(".badge.problem")).to_have_count(0, timeout=30_000)


def test_clients_are_shown_and_disconnected(server: Server, client: Client, view: Open) -> None:
    page = view("#/clients")
    with Waiter(server.port) as waiting:
        waiting("CLIENT", "SETNAME", "ann")
        waiting.send("BLPOP", "waited-for", 0)
        page.get_by_label("Filter").fill("ann")
        row = page.locator("tbody tr", has_text="waited-for")
        expect(row).to_contain_text("blpop")
        button = row.get_by_role("button", name=re.compile("Disconnect client"))
        expect(button).to_be_in_viewport(ratio=1)
        button.click()
        page.get_by_role("dialog").get_by_role("button", name="Disconnect", exact=True).click()
        expect(page.locator("#results")).to_contain_text("was disconnected")
        expect(page.locator("tbody tr")).to_have_count(0)
        assert waiting.ends_without_reply()


def test_nothing_that_clients_choose_becomes_a_script(server: Server, client: Client, view: Open) -> None:
    name = f"queue {_EVIL}"
    client.rpush(name, _EVIL, '{"a": "' + _EVIL.replace('"', "'") + '"}')
    with server.client(client_name="<img/src=x/onerror=window.harmed=1>") as other:
        other.execute_command("CLIENT", "SETINFO", "LIB-NAME", "<b>")
        page = view()
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


def test_a_login_shows_what_the_user_may_see_and_do(guarded: Server, open_page: Open) -> None:
    page = open_page(guarded, bypass_csp=True)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    _assert_accessible(page, "login")
    _log_in(page, "reader", "wrong")
    expect(page.locator(".login .failed")).to_have_text("The user or the password is wrong.")
    _log_in(page, "reader", "secret")
    expect(page.locator("tbody a")).to_have_text(["mine"])
    expect(page.get_by_role("link", name="Clients")).to_be_hidden()
    expect(page.get_by_role("button", name="Create a queue")).to_have_count(0)
    page.locator("tbody a").click()
    expect(page.locator(".messages li")).to_have_count(1)
    expect(page.locator("main .buttons button")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    _log_in(page, "root", "secret")
    expect(page.locator("main .buttons button")).not_to_have_count(0)
    page.keyboard.press("q")
    expect(page.locator("tbody a")).to_have_text(["mine", "other"])
    # The form returns when the session has ended.
    headers = "{'Content-Type': 'application/json'}"
    page.evaluate(f"fetch('/api/logout', {{method: 'POST', body: '{{}}', headers: {headers}}})")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_everything_can_be_done_with_the_keyboard(server: Server, client: Client, view: Open) -> None:
    for name in ("a", "b", "c"):
        client.rpush(name, "x")
    page = view()
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
    for key, title in (("s", "Servers"), ("c", "Clients"), ("q", "Queues")):
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)
        expect(page).to_have_title(f"{title} \N{EN DASH} pressure-server")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, PHONE])
def test_axe_finds_no_violation(client: Client, view: Open, theme: str, width: int) -> None:
    create(client, "jobs", "TYPE", "JOBS", "BOUND", "2")
    client.rpush("jobs", '{"a": 1}', b"\x00\xff")
    client.execute_command("PRESSURE.CLOSE", "jobs")
    create(client, "many", "TYPE", "JOBS")
    client.rpush("many", *['{"a": 1}'] * 99)
    for _ in range(30):
        client.execute_command("PRESSURE.RESERVE", "many")
    create(client, "log", "TYPE", "LOG")
    client.execute_command("PRESSURE.GROUP", "CREATE", "log", "g")
    client.rpush("log", "a")
    page = view(width=width, color_scheme=theme, bypass_csp=True)

    expect(page.locator("tbody tr")).to_have_count(4)
    _assert_accessible(page, "overview")
    page.locator("tbody a", has_text="jobs").click()
    expect(page.locator(".messages li")).to_have_count(2)
    _assert_accessible(page, "queue")
    page.get_by_role("button", name="Alter").click()
    _assert_accessible(page, "dialog")
    page.keyboard.press("Escape")
    _go(page, "#/queue/0/log")
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    _assert_accessible(page, "log")
    _go(page, "#/queue/0/many")
    expect(page.get_by_role("table", name="Reserved jobs").locator("tbody tr")).to_have_count(20)
    expect(page.locator(".pager:visible")).to_have_count(2)
    _assert_accessible(page, "reserved jobs")
    for key, name in (("c", "clients"), ("s", "servers")):
        page.keyboard.press(key)
        expect(page.locator("main[aria-busy]")).to_have_count(0)
        expect(page.locator("tbody tr")).not_to_have_count(0)
        _assert_accessible(page, name)


def test_the_theme_is_kept(client: Client, view: Open) -> None:
    page = view(color_scheme="light")
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
    server = start_server("--backend", backend.url, *HTTP)
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
    server = start_server("--backend", valkey.url, *HTTP)
    page = open_page(server)
    expect(page.locator(".totals")).to_be_visible()
    expect(page.locator(".attention")).to_have_count(0)
    lose_calls(server, valkey, 3)
    expect(page.locator(".attention")).to_have_text("3 answered calls lost by the backend")


def test_the_shards_of_a_cluster_are_shown(
    start_server: StartServer, open_page: Open, tmp_path: Path
) -> None:
    with Cluster(tmp_path, full_coverage=False).started() as cluster:
        server = start_server("--backend", url_of(cluster), *HTTP)
        page = open_page(server)
        servers = open_page(server, "#/servers")
        shards = servers.get_by_role("table", name="Shards").locator("tbody tr")
        expect(shards).to_have_count(SHARDS)
        last = shards.last
        prefix = PLACEMENT.prefixes[-1].decode()
        node = run_in_a_thread(cluster.master_of(prefix))
        shown = last.locator("td").all_inner_texts()
        assert shown[:-1] == [f"shard {SHARDS - 1}", "ready", prefix, f"redis://127.0.0.1:{node.port}"]
        names = [f"q{number}" for number in range(2 * SHARDS)]
        with server.client() as client:
            for name in names:
                client.rpush(name, "x")
        expect(page.locator("tbody a")).to_have_count(len(names))
        node.kill()
        expect(last.locator(".badge")).to_have_text("not ready")
        expect(page.locator(".attention")).to_have_text(re.compile(r"^\d shards? not ready$"))
        # The figures of other queues stay live.
        old = page.locator(".badge", has_text="old")
        expect(old.first).to_be_visible()
        assert 0 < old.count() < len(names)
        expect(page.locator("#connection")).to_have_text("live")
        page.locator(".attention a").click()
        expect(page.locator("h1")).to_have_text("Servers")


def test_errors_of_scripts_are_shown_and_reported(
    start_server: StartServer, backend: Valkey, browser: Browser
) -> None:
    server = start_server("--backend", backend.url, *HTTP)
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.port_of('http')}/")
    expect(page.locator("h1")).to_have_text("Queues")
    page.evaluate("setTimeout(() => { throw new Error('broken') }, 0)")
    expect(page.locator("#errors")).to_contain_text("broken")
    wait_for(lambda: "an error in the console's page: Uncaught Error: broken" in server.log, "the report")
    page.close()

"""The site of docs/, as `make site` builds it: complete, the same as in a clone, and readable on a phone."""

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page

from tests.documents import DOCS
from tests.support.made_once import made_once
from tests.support.paths import ROOT
from tests.support.requirements import require

PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
_STRUCTURE = ("h1", "h2", "h3", "li", "ol", "pre", "table", "td", "ul")
# Of each kind: lists of links, code, tables, pictures. Looking at all takes some minutes.
_SHOWN = (
    "",
    "guides/workers",
    "guides/stuck-queue",
    "reference/options",
    "guides/console",
    "tutorials/python",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A link to nothing, and a page that no part has, are errors."""
    require(importlib.util.find_spec("material"), "mkdocs-material, of the extra dev")

    def build(folder: Path) -> None:
        command = (sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder))
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr

    return made_once(tmp_path_factory, "site", build)


def of_site(site: Path, page: str) -> str:
    """Return the HTML of a page's text."""
    folder = site / page.removesuffix(".md").removesuffix("README")
    return (folder / "index.html").read_text("utf-8").partition("<article")[2].partition("</article>")[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_same_structure_as_in_a_clone(site: Path, page: str) -> None:
    in_clone = MarkdownIt().enable("table").render((DOCS / page).read_text("utf-8"))
    on_site = re.sub(r'<pre id="[^"]*"><span></span>', "<pre>", of_site(site, page))

    def structure(text: str) -> Counter[str]:
        return Counter(tag for tag in re.findall(r"<(\w+)", text) if tag in _STRUCTURE)

    assert structure(on_site) == structure(in_clone)


def test_programs_find_all_pages(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((\S+)\): \S", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == PAGES
    for page in PAGES:
        assert (site / page).read_text("utf-8").startswith("# ")


def test_links_out_of_the_pages_lead_to_the_repository(site: Path) -> None:
    assert re.search(r'href="https://\S+/blob/main/CHANGELOG\.md"', of_site(site, "guides/upgrade.md"))
    assert re.search(r'href="https://\S+/tree/main/deploy/prometheus"', of_site(site, "reference/metrics.md"))


@pytest.fixture(params=["light", "dark"])
def phone(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A narrow window, from which no request leaves for another host."""
    context = browser.new_context(viewport={"width": 320, "height": 800}, color_scheme=request.param)
    context.set_default_timeout(60_000)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    yield page
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
@pytest.mark.clients
@pytest.mark.parametrize("path", _SHOWN)
def test_a_page_is_accessible_and_fits_a_phone(site: Path, phone: Page, path: str) -> None:
    phone.goto(f"{(site / path).as_uri()}/index.html")
    assert phone.evaluate("document.documentElement.scrollWidth") == 320
    phone.add_script_tag(path=ROOT / "tests/support/axe/axe.min.js")
    found = phone.evaluate("axe.run().then(results => results.violations)")
    assert [
        (one["id"], [(node["target"], node["failureSummary"]) for node in one["nodes"][:5]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ] == []

"""What `make site` does to the pages in docs/, which are written to be read in a clone: hooks of mkdocs."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_DOCS = ROOT / "docs"
_LINK_UP = re.compile(r"\]\(((?:\.\./)+[^)#\s]*)")
# A test may know a block of code by the words after its language: ```php worker. A title="…" is for readers.
_NAMED_FENCE = re.compile(r"^( *```\w+) (?!title=).*$", re.MULTILINE)
# A warning ends the build.
_log = logging.getLogger("mkdocs.hooks.site")
_pages: list[Page] = []


class _TableCells(Treeprocessor):
    """Lets the keyboard scroll tables, and names each cell's column, which site.css shows on a phone."""

    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            table.set("tabindex", "0")
            titles = ["".join(head.itertext()) for head in table.iter("th")]
            for row in table.iter("tr"):
                for title, cell in zip(titles, row.findall("td"), strict=False):
                    cell.set("data-title", title)


class Tables(Extension):
    """The extension of mkdocs.yml."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 # the library's name
        md.treeprocessors.register(_TableCells(md), "table cells", 0)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_others: object) -> str:
    """Let links to files outside docs/ lead to the repository, and drop the names of blocks of code."""
    folder = (_DOCS / page.file.src_uri).parent

    def resolved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(_DOCS):
            return link[0]
        if not target.exists():
            _log.warning("%s has a link to %s, which does not exist", page.file.src_uri, link[1])
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config.extra['source']}/{kind}/main/{target.relative_to(ROOT).as_posix()}"

    return _NAMED_FENCE.sub(r"\1", _LINK_UP.sub(resolved, markdown))


def on_post_page(output: str, **_others: object) -> str:
    """Name the dialog of the search, which the theme does not."""
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')


def on_nav(nav: Navigation, **_others: object) -> None:
    """Keep the order of the pages for llms.txt."""
    _pages[:] = nav.pages


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, which lists the pages with their first sentences, and each page as Markdown."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    part = None
    for page in _pages:
        sections = list(page.ancestors)
        if sections and sections[-1].title != part:
            part = sections[-1].title
            lines += ["", f"## {part}", ""]
        text = page.markdown or ""
        path = page.file.src_uri
        lines += [f"- [{page.title}]({config.site_url or ''}{path}): {_first_sentence(text)}"]
        copy = Path(config.site_dir, path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first_sentence(text: str) -> str:
    """Return the sentence after the heading."""
    paragraph = text.partition("\n\n")[2].partition("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]

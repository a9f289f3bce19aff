// A table whose rows change in place, so that the focus and the reader's place stay where they are.

import { arrange, fill, h } from "./dom.js";
import { counted, number } from "./format.js";

/**
 * A column: `key` of its values in a row, `title`, `show` (row → text or nodes), `uses` (row → what the cell depends
 * on; otherwise the value), `sorts` (whether the server sorts by it), `isNumber`, `isLong` (whether it has a line of its
 * own on a phone, and is not cut as the first column), and `isDownFirst` (whether the first click sorts the highest first,
 * as it does for numbers).
 */
export class Table {
  constructor(caption, columns, { keyOf, sort, order, onSort }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.heads = columns.map((column) => this.head(column, onSort));
    this.body = h("tbody", { role: "rowgroup", onkeydown: (event) => this.move(event) });
    this.element = h(
      "table",
      { role: "table" },
      h("caption", { class: "hidden" }, caption),
      h("thead", { role: "rowgroup", class: onSort ? "sorts" : null }, h("tr", { role: "row" }, this.heads)),
      this.body,
    );
    this.showSort(sort, order);
  }

  head(column, onSort) {
    const content = column.sorts
      ? h("button", { type: "button", onclick: () => onSort(column.key, column.isNumber || column.isDownFirst) }, column.title)
      : h("span", {}, column.title);
    return h(
      "th",
      { role: "columnheader", scope: "col", class: column.isNumber ? "number" : null, "data-key": column.key },
      content,
    );
  }

  /** Show by which column the rows are sorted. */
  showSort(sort, order) {
    for (const head of this.heads) {
      if (head.dataset.key === sort) head.setAttribute("aria-sort", order === "down" ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
  }

  /** Show these rows, in this order. */
  update(rows) {
    const kept = new Map();
    for (const row of rows) {
      const key = this.keyOf(row);
      const line = this.rows.get(key) || this.line();
      kept.set(key, line);
      this.refresh(line, row);
    }
    arrange(this.body, Array.from(kept.values(), (line) => line.element));
    this.rows = kept;
  }

  line() {
    const cells = this.columns.map((column) =>
      h("td", { role: "cell", "data-title": column.title, class: column.isNumber ? "number" : column.isLong && "long" }),
    );
    return { element: h("tr", { role: "row" }, cells), cells, shown: [] };
  }

  refresh(line, row) {
    this.columns.forEach((column, at) => {
      const used = JSON.stringify(column.uses ? column.uses(row) : row[column.key]);
      if (line.shown[at] === used) return;
      line.shown[at] = used;
      fill(line.cells[at], column.show ? column.show(row) : row[column.key]);
    });
  }

  /** Move between the links of rows with the arrow keys. */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("tr");
    if (!step || !row) return;
    const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    next?.querySelector("a, button")?.focus();
    event.preventDefault();
  }
}

/** Return a section with a table, which is hidden while the table has no rows: `element`, and `update(rows)`. */
export function tableSection(title, label, table, pages = null) {
  const region = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, table.element);
  const element = h("section", { hidden: true }, h("h2", {}, title), pages, region);
  return {
    element,
    update(rows) {
      element.hidden = !rows.length;
      table.update(rows);
    },
  };
}

/**
 * Return the controls to choose a page of, for example, `what` "queue": `update(page, pages, matching)` shows where the
 * reader is. A screen reader tells it, too, unless `isQuiet`, for what changes all the time.
 */
export function pager(what, size, onPage, isQuiet = false) {
  const text = h("span", { class: "muted", role: isQuiet ? null : "status" });
  const back = h("button", { type: "button", onclick: () => onPage(current - 1) }, "Previous");
  const forth = h("button", { type: "button", onclick: () => onPage(current + 1) }, "Next");
  const element = h("nav", { class: "pager", "aria-label": `Pages of ${what}s` }, back, text, forth);
  let current = 0;
  return {
    element,
    update(page, pages, matching) {
      current = page;
      const focused = document.activeElement;
      back.disabled = page === 0;
      forth.disabled = page >= pages - 1;
      // A button that is disabled loses the focus.
      if (focused.disabled && element.contains(focused)) (focused === back ? forth : back).focus();
      const last = Math.min((page + 1) * size, matching);
      const all = counted(matching, what);
      text.textContent = matching > 1 ? `${number(page * size + 1)} to ${number(last)} of ${all}` : matching ? all : `no ${what}s`;
    },
  };
}

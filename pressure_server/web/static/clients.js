// The page of clients.

import { send } from "./actions.js";
import { listen } from "./api.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes, duration, orDash } from "./format.js";
import { pager, Table } from "./table.js";

const PAGE = 50;
const TYPING = 250;

async function disconnect(row) {
  const answer = await ask({
    title: "Disconnect",
    text: `Disconnect client ${row.id} (${row.protocol}, ${row.address})? What it has not received returns to its queues.`,
    confirm: "Disconnect",
    isDangerous: true,
  });
  if (answer !== null) await send({ action: "disconnect", client: row.id });
}

function queueLinks(queues, query = "") {
  return queues.map((queue, at) => [
    at > 0 && ", ",
    h("a", { href: `#/queue/${queue.db}/${queue.id}${query}` }, queue.name || "(empty name)"),
  ]);
}

const COLUMNS = [
  { key: "id", title: "Client", sorts: true, isNumber: true },
  { key: "states", title: "State", show: (row) => row.states.map((state) => h("span", { class: `badge ${state}` }, state)) },
  { key: "name", title: "Name", isLong: true },
  { key: "address", title: "Address", isLong: true },
  {
    key: "queues",
    title: "Waits for",
    isLong: true,
    show: (row) => [queueLinks(row.queues), row.more_queues > 0 && ` and ${row.more_queues} more`],
    uses: (row) => [row.queues, row.more_queues],
  },
  { key: "reserved", title: "Reserved", sorts: true, isNumber: true, show: (row) => orDash(row.reserved) },
  { key: "reserved_from", title: "Reserved from", isLong: true, show: (row) => queueLinks(row.reserved_from, "?show=reserved") },
  { key: "command", title: "Command" },
  { key: "idle", title: "Idle", sorts: true, isNumber: true, show: (row) => duration(row.idle) },
  { key: "age", title: "Age", isNumber: true, show: (row) => duration(row.age) },
  { key: "bytes", title: "Held", sorts: true, isNumber: true, show: (row) => bytes(row.bytes) },
  { key: "protocol", title: "Protocol", sorts: true },
  { key: "user", title: "User", sorts: true },
  { key: "library", title: "Library", isLong: true },
  {
    key: "disconnect",
    title: "Action",
    show: (row) => h("button", { type: "button", onclick: () => disconnect(row), "aria-label": `Disconnect client ${row.id}` }, "Disconnect"),
    uses: (row) => row.id,
  },
];

/** Return a table of clients. */
export function clientTable(_me, options = {}) {
  const columns = options.onSort ? COLUMNS : COLUMNS.map((column) => ({ ...column, sorts: false }));
  return new Table("Clients", columns, { keyOf: (row) => row.id, ...options });
}

/** Show all clients in an element; `query` may have a `filter`, `sort` and `order`. Return an object with `close`. */
export function showClients(main, me, lost, query) {
  const view = { sort: "id", order: "up", filter: "", ...Object.fromEntries(query), page: 0 };
  let typing = null;
  let stream = null;
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "address, user, library, queue …",
    autocomplete: "off",
    maxlength: 200,
    value: view.filter,
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ filter: filter.value, page: 0 }), TYPING);
    },
  });
  const pages = pager("client", PAGE, (page) => change({ page }));
  const table = clientTable(me, {
    sort: view.sort,
    order: view.order,
    onSort: (sort, isNumber) => {
      const order = view.sort === sort ? (view.order === "up" ? "down" : "up") : isNumber && sort !== "id" ? "down" : "up";
      table.showSort(sort, order);
      change({ sort, order, page: 0 });
    },
  });

  function change(changes) {
    Object.assign(view, changes);
    stream?.close();
    stream = listen(
      `/api/clients/events?${new URLSearchParams(view)}`,
      (data) => {
        main.removeAttribute("aria-busy");
        table.update(data.rows);
        pages.update(data.page, data.pages, data.matching);
      },
      lost,
    );
  }

  main.setAttribute("aria-busy", "true");
  main.replaceChildren(
    h("h1", {}, "Clients"),
    h("div", { class: "bar" }, h("label", { for: "filter" }, "Filter"), filter, pages.element),
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of clients" }, table.element),
  );
  change({});
  return {
    close() {
      clearTimeout(typing);
      stream.close();
    },
  };
}

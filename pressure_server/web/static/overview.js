// The overview: all queues, a page at a time, live.

import { act, CREATE, may, maySeeClients } from "./actions.js";
import { listen } from "./api.js";
import { h, keeper } from "./dom.js";
import { bytes, counted, duration, number, orDash, rate } from "./format.js";
import { sparkline } from "./sparkline.js";
import { pager, Table } from "./table.js";

const PAGE = 50;
const TYPING = 250; // milliseconds until a filter is used
const LONGEST_FILTER = 200;

/** Return the badges of a queue: its states, problems and warnings. */
export function badges(row) {
  return [
    row.states.map((state) => h("span", { class: `badge ${state}` }, state)),
    row.stale > 0 && h("span", { class: "badge warning", title: `the figures are ${duration(row.stale)} old` }, "old"),
    row.problems.length > 0 && h("span", { class: "badge problem", title: row.problems.join("\n") }, "problem"),
    row.warnings.length > 0 && h("span", { class: "badge warning", title: row.warnings.join("\n") }, "warning"),
  ];
}

const COLUMNS = [
  {
    key: "name",
    title: "Queue",
    sorts: true,
    show: (row) => [
      h("a", { href: `#/queue/${row.db}/${row.id}`, title: row.name }, row.name || "(empty name)"),
      row.db ? h("span", { class: "muted" }, ` db ${row.db}`) : null,
    ],
    uses: (row) => [row.db, row.id],
  },
  {
    key: "states",
    title: "State",
    sorts: true,
    isDownFirst: true,
    show: badges,
    uses: (row) => [row.states, row.stale, row.problems, row.warnings],
  },
  { key: "type", title: "Type", sorts: true },
  { key: "messages", title: "Messages", sorts: true, isNumber: true, show: (row) => number(row.messages) },
  {
    key: "lengths",
    title: "Last minutes",
    show: (row) => sparkline(row.lengths, row.messages),
    uses: (row) => [row.lengths, row.messages],
  },
  { key: "put", title: "Put/s", sorts: true, isNumber: true, show: (row) => rate(row.put) },
  { key: "taken", title: "Taken/s", sorts: true, isNumber: true, show: (row) => rate(row.taken) },
  { key: "age", title: "Oldest", sorts: true, isNumber: true, show: (row) => (row.age ? duration(row.age) : "–") },
  {
    key: "waiting",
    title: "Waiting",
    sorts: true,
    isNumber: true,
    show: (row, me) => {
      const counts = [
        [row.waiting_producers, "put"],
        [row.waiting_consumers, "take"],
      ].filter(([count]) => count);
      const text = counts.map(([count, what]) => `${number(count)} ${what}`).join(", ");
      const filter = encodeURIComponent(row.name.slice(0, LONGEST_FILTER));
      return text ? link(maySeeClients(me) && `#/clients?filter=${filter}`, text) : "–";
    },
    uses: (row) => [row.waiting_producers, row.waiting_consumers],
  },
  { key: "bound", title: "Bound", sorts: true, isNumber: true, show: (row) => orDash(row.bound) },
  { key: "bytes", title: "Size", sorts: true, isNumber: true, show: (row) => bytes(row.bytes) },
  ...["reserved", "buried"].map((key) => ({
    key,
    title: key[0].toUpperCase() + key.slice(1),
    sorts: true,
    isNumber: true,
    show: (row) => link(row[key] > 0 && `#/queue/${row.db}/${row.id}?show=${key}`, orDash(row[key])),
  })),
];

// The queues that can be chosen; see _SHOWN in overview.py.
const SHOWN = [
  ["", "all queues"],
  ["problem", "with problems"],
  ["full", "full"],
  ["closed", "closed"],
  ["paused", "paused"],
  ["reserved", "with reserved jobs"],
  ["buried", "with buried jobs"],
];

/** Return a link, or only its text if there is no address. */
function link(href, text) {
  return href ? h("a", { href }, text) : text;
}

function totals(server, me) {
  const clients = maySeeClients(me) && "#/clients";
  const shown = [
    ["queues", number(server.queues)],
    ["messages", number(server.messages)],
    ["oldest message", server.messages ? duration(server.oldest) : "–"],
    ["commands/s", number(server.commands)],
    ["clients", link(clients, `${number(server.clients)}, ${number(server.blocked)} waiting`)],
  ];
  const attention = [
    [server.problems, "queue", " with problems", "#/queues?state=problem"],
    [server.full, "full queue", "", "#/queues?state=full"],
    [server.closed, "closed queue", "", "#/queues?state=closed"],
    [server.buried, "buried job", "", "#/queues?state=buried"],
    [server.throttled, "throttled client", "", clients && `${clients}?sort=bytes&order=down`],
    [server.lost_calls, "answered call", " lost by the backend", "#/servers"],
    [server.unready_shards, "shard", " not ready", "#/servers"],
  ].filter(([count]) => count);
  return [
    !server.is_complete && h("p", { class: "muted" }, "The first look at all queues is not complete yet."),
    h("dl", { class: "totals" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    attention.length > 0 &&
      h("p", { class: "attention" }, attention.map(([count, what, rest, href]) => h("span", {}, link(href, `${counted(count, what)}${rest}`)))),
  ];
}

/** Show the overview in an element; `query` may have the `state` of the queues. Return an object with `close`. */
export function showOverview(main, me, lost, query) {
  const state = SHOWN.some(([key]) => key === query.get("state")) ? query.get("state") : "";
  const view = { sort: "name", order: "up", filter: "", state, page: 0 };
  const summary = h("div", {});
  const showTotals = keeper(summary);
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "text, or a pattern such as mail*",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: LONGEST_FILTER,
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ filter: filter.value, page: 0 }), TYPING);
    },
  });
  const choice = h(
    "select",
    {
      id: "state",
      onchange: () => {
        history.replaceState(null, "", choice.value ? `#/queues?state=${choice.value}` : "#/queues");
        change({ state: choice.value, page: 0 });
      },
    },
    SHOWN.map(([key, text]) => h("option", { value: key, selected: key === state }, text)),
  );
  const pages = pager("queue", PAGE, (page) => change({ page }));
  const columns = COLUMNS.map((column) => ({ ...column, show: column.show && ((row) => column.show(row, me)) }));
  const table = new Table("Queues", columns, {
    keyOf: (row) => `${row.db} ${row.id}`,
    sort: view.sort,
    order: view.order,
    onSort: (sort, isDownFirst) => {
      const order = view.sort === sort ? (view.order === "up" ? "down" : "up") : isDownFirst ? "down" : "up";
      table.showSort(sort, order);
      change({ sort, order, page: 0 });
    },
  });
  let typing = null;
  let stream = null;

  function change(changes) {
    Object.assign(view, changes);
    stream?.close();
    stream = listen(`/api/overview/events?${new URLSearchParams(view)}`, show, lost);
  }

  function show(data) {
    showTotals(data.server, (server) => totals(server, me));
    // If all figures are old, the page says so once.
    table.update(data.stale ? data.rows.map((row) => ({ ...row, stale: 0 })) : data.rows);
    pages.update(data.page, data.pages, data.matching);
    main.removeAttribute("aria-busy");
  }

  main.setAttribute("aria-busy", "true");
  main.replaceChildren(
    h("h1", {}, "Queues"),
    summary,
    h(
      "div",
      { class: "bar" },
      h("label", { for: "filter" }, "Filter"),
      filter,
      h("label", { for: "state" }, "Show"),
      choice,
      may(me, CREATE) && h("button", { type: "button", onclick: () => act(CREATE, { db: 0 }) }, "Create a queue"),
      pages.element,
    ),
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of queues" }, table.element),
  );
  change({});
  return {
    close() {
      clearTimeout(typing);
      stream.close();
    },
  };
}

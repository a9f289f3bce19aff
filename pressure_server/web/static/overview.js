// The overview: all queues, a page at a time, live.

import { act, CREATE, may } from "./actions.js";
import { listen } from "./api.js";
import { fill, h, keeper } from "./dom.js";
import { bytes, counted, duration, number, orDash, rate } from "./format.js";
import { sparkline } from "./sparkline.js";
import { pager, Table } from "./table.js";

const PAGE = 50;
const TYPING = 250; // milliseconds until a filter is used

/** Return the badges of a queue: its states, problems and warnings. */
export function badges(row) {
  return [
    row.states.map((state) => h("span", { class: `badge ${state}` }, state)),
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
      h("a", { href: `#/queue/${row.db}/${row.id}` }, row.name || "(empty name)"),
      row.db ? h("span", { class: "muted" }, ` db ${row.db}`) : null,
    ],
    uses: (row) => [row.db, row.id],
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
    show: (row) =>
      row.waiting_producers + row.waiting_consumers
        ? `${row.waiting_producers} put, ${row.waiting_consumers} take`
        : "–",
    uses: (row) => [row.waiting_producers, row.waiting_consumers],
  },
  { key: "bound", title: "Bound", sorts: true, isNumber: true, show: (row) => orDash(row.bound) },
  { key: "bytes", title: "Size", sorts: true, isNumber: true, show: (row) => bytes(row.bytes) },
  { key: "reserved", title: "Reserved", sorts: true, isNumber: true, show: (row) => orDash(row.reserved) },
  { key: "buried", title: "Buried", sorts: true, isNumber: true, show: (row) => orDash(row.buried) },
  { key: "states", title: "State", sorts: true, isDownFirst: true, show: badges, uses: (row) => [row.states, row.problems, row.warnings] },
];

function totals(server) {
  const shown = [
    ["queues", number(server.queues)],
    ["messages", number(server.messages)],
    ["oldest message", server.messages ? duration(server.oldest) : "–"],
    ["commands/s", number(server.commands)],
    ["clients", `${number(server.clients)}, ${number(server.blocked)} waiting`],
  ];
  const attention = [
    [server.problems, "queue", "with problems"],
    [server.full, "full queue", ""],
    [server.closed, "closed queue", ""],
    [server.buried, "buried job", ""],
    [server.throttled, "throttled client", ""],
    [server.lost_calls, "answered call", "lost by the backend"],
  ].filter(([count]) => count);
  return [
    server.not_ready && h("p", { class: "failed" }, `Not ready: ${server.not_ready}`),
    !server.is_complete && h("p", { class: "muted" }, "The first look at all queues is not complete yet."),
    h("dl", { class: "totals" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    attention.length > 0 &&
      h("p", { class: "attention" }, attention.map(([count, what, rest]) => h("span", {}, `${counted(count, what)} ${rest}`))),
  ];
}

const SHARD_COLUMNS = ["Shard", "Prefix", "Node", "State", "Lost calls"];

/** Return the table of the shards of a cluster, which opens when one is not ready: `element`, and `update(shards)`. */
function shardTable() {
  const summary = h("summary", {});
  const rows = h("tbody", {});
  const head = h("tr", {}, SHARD_COLUMNS.map((title) => h("th", { scope: "col" }, title)));
  const table = h("table", {}, h("caption", { class: "hidden" }, "Shards"), h("thead", {}, head), rows);
  const region = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of shards" }, table);
  const element = h("details", { class: "shards", hidden: true }, summary, region);
  let unready = 0;
  return {
    element,
    update(shards) {
      const before = unready;
      unready = shards.filter((shard) => shard.not_ready).length;
      element.hidden = !shards.length;
      if (unready > before) element.open = true;
      fill(summary, counted(shards.length, "shard"), unready > 0 && `, ${unready} not ready`);
      const state = (shard) =>
        shard.not_ready ? [h("span", { class: "badge problem" }, "not ready"), ` ${shard.not_ready}`] : "ready";
      const cells = (shard) => [shard.number, shard.prefix, shard.node, state(shard), orDash(shard.lost_calls)];
      fill(rows, shards.map((shard) => h("tr", {}, cells(shard).map((cell) => h("td", {}, cell)))));
    },
  };
}

/** Show the overview in an element. Return an object with `close`. */
export function showOverview(main, me, lost) {
  const view = { sort: "name", order: "up", filter: "", page: 0 };
  const summary = h("div", {});
  const showTotals = keeper(summary);
  const shards = shardTable();
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "text, or a pattern such as mail*",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 200,
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ filter: filter.value, page: 0 }), TYPING);
    },
  });
  const pages = pager("queues", PAGE, (page) => change({ page }));
  const table = new Table("Queues", COLUMNS, {
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
    showTotals(data.server, totals);
    shards.update(data.server.shards);
    table.update(data.rows);
    pages.update(data.page, data.pages, data.matching);
    main.removeAttribute("aria-busy");
  }

  main.setAttribute("aria-busy", "true");
  main.replaceChildren(
    h("h1", {}, "Queues"),
    summary,
    shards.element,
    h(
      "div",
      { class: "bar" },
      h("label", { for: "filter" }, "Filter"),
      filter,
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

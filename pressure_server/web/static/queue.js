// The page of one queue.

import { act, ACTIONS, may } from "./actions.js";
import { listen } from "./api.js";
import { chart } from "./chart.js";
import { clientTable } from "./clients.js";
import { h, keeper } from "./dom.js";
import { bytes, clock, duration, number, orDash, rate, times } from "./format.js";
import { messageContent, messageSize, MessageList } from "./message.js";
import { badges } from "./overview.js";
import { pager, Table, tableSection } from "./table.js";

// In the order in which they are shown. Reserved jobs have a table, and the others a list.
const LISTED = ["buried", "delayed", "ready"];
const STATES = ["reserved", ...LISTED];
const PAGE = 20; // as in queue_page.py

function total(count, perSecond) {
  return perSecond ? `${number(count)}, ${rate(perSecond)}/s` : number(count);
}

function time(milliseconds) {
  return milliseconds ? duration(milliseconds / 1000) : "–";
}

/** Return a rate as the option has it: "10/1". The server has its time in milliseconds. */
function rateOption(text) {
  const [jobs, milliseconds] = text.split("/");
  return text ? `${jobs}/${milliseconds / 1000}` : "–";
}

/** Return the figures of a queue: the name and the text of each, and where a link leads. */
function figures({ row, info }) {
  return [
    ["messages", number(row.messages)],
    ["oldest", row.age ? duration(row.age) : "–"],
    ["size", bytes(row.bytes)],
    ["bound", orDash(row.bound)],
    ["overflow", info.overflow],
    ["max-bytes", orDash(info.max_bytes)],
    ["ttl", time(info.ttl_ms)],
    ["settings by", info.template ? `[queues."${info.template}"]` : "–"],
    ["put", total(info.put, row.put)],
    ["taken", total(info.taken, row.taken)],
    ["wait to put", number(row.waiting_producers)],
    ["wait to take", number(row.waiting_consumers)],
    ["dropped", orDash(info.dropped)],
    ["paused", time(info.paused_ms)],
    ["reservations timed out", orDash(info.timeouts)],
    ["max-deliveries", orDash(info.max_deliveries)],
    ["dead-letter", info.dead_letter || "–", info.dead_letter && `#/queue/${row.db}/${info.dead_letter_id}`],
    ["ack", info.ack || "final"],
    ["ack-ttr", time(info.ack_ttr_ms)],
    ["retry-delay", time(info.retry_delay_ms)],
    ["retry-delay-max", time(info.retry_delay_max_ms)],
    ["in-flight", orDash(info.in_flight)],
    ["rate", rateOption(info.rate || "")],
    ["unique", info.unique || "–"],
    ["producer role", `${info.producer_role}${info.producer ? `, last ${info.producer}` : ""}`],
    ["consumer role", `${info.consumer_role}${info.consumer ? `, last ${info.consumer}` : ""}`],
  ];
}

/** Return a function that shows figures in a list. What has not changed stays, and so can be clicked and selected. */
function figureList(list) {
  const keepers = {};
  return (data) => {
    for (const [name, ...value] of figures(data)) {
      if (!keepers[name]) {
        const place = h("dd");
        list.append(h("div", {}, h("dt", {}, name), place));
        keepers[name] = keeper(place);
      }
      keepers[name](value, ([text, href]) => (href ? h("a", { href }, text) : text));
    }
  };
}

function jobText(job) {
  const ready = job.until ? `, ready at ${until(job)}` : "";
  return `job ${job.id}, ${messageSize(job)}, priority ${job.priority}, ${duration(job.age)} old, delivered ${times(job.reserves)}${ready}`;
}

function until(job) {
  return `${clock(job.until)}, in ${duration(Math.max(0, job.until - job.now))}`;
}

function heldBy({ client, server, token }) {
  if (client) return h("a", { href: `#/clients?filter=${encodeURIComponent(client.address)}` }, `client ${client.id}`);
  return server ? `client ${token} of ${server}` : `token ${token}`;
}

const RESERVED_COLUMNS = [
  {
    key: "id",
    title: "Job",
    show: (job) => (job.count > 1 ? `jobs ${job.id} to ${job.id + job.count - 1}` : `job ${job.id}`),
    uses: (job) => [job.id, job.count],
  },
  { key: "holder", title: "Held by", isLong: true, show: heldBy, uses: (job) => [job.client?.id, job.server, job.token] },
  { key: "address", title: "Address", isLong: true, show: (job) => job.client?.address, uses: (job) => job.client?.address },
  { key: "name", title: "Name", isLong: true, show: (job) => job.client?.name, uses: (job) => job.client?.name },
  {
    key: "since",
    title: "Since",
    isLong: true,
    show: (job) => (job.since ? `${clock(job.since)}, ${duration(Math.max(0, job.now - job.since))} ago` : "–"),
    uses: (job) => [job.since, job.now],
  },
  {
    key: "until",
    title: "Until",
    isLong: true,
    show: (job) => (job.until ? until(job) : job.server ? "the connection ends" : "–"),
    uses: (job) => [job.until, job.now, job.server],
  },
  { key: "reserves", title: "Deliveries", isNumber: true, show: (job) => number(job.reserves) },
  { key: "priority", title: "Priority", isNumber: true, show: (job) => number(job.priority) },
  { key: "age", title: "Age", isNumber: true, show: (job) => duration(job.age) },
  {
    key: "message",
    title: "Message",
    isLong: true,
    show: (job) => [h("span", { class: "muted" }, messageSize(job)), messageContent(job)],
    uses: (job) => [job.size, job.text, job.hex],
  },
];

const GROUP_COLUMNS = [
  {
    key: "name",
    title: "Group",
    show: (group) => h("a", { href: `#/queue/${group.db}/${group.id}` }, group.name),
    uses: (group) => [group.db, group.id],
  },
  ...[
    ["next", "Next offset"],
    ["lag", "Lag"],
    ["reserved", "Reserved"],
    ["buried", "Buried"],
    ["missed", "Missed"],
  ].map(([key, title]) => ({ key, title, isNumber: true, show: (group) => number(group[key]) })),
];

/** Show a queue in an element; `query` may name jobs to `show` first. Return an object with `close`. */
export function showQueue(main, me, db, id, lost, query) {
  const title = h("h1", { class: "name" }, decodeURIComponentSafely(id));
  const parts = ["state", "notes", "buttons", "empty"];
  const elements = Object.fromEntries(parts.map((part) => [part, h("div", { class: part })]));
  const show = Object.fromEntries(parts.map((part) => [part, keeper(elements[part])]));
  const figureElement = h("dl", { class: "figures" });
  const showFigures = figureList(figureElement);
  const view = { db, id };
  const pagers = Object.fromEntries(
    ["list", ...STATES].map((part) => {
      const what = part === "list" ? "oldest message" : `${part} job`;
      return [part, pager(what, PAGE, (page) => change({ [part]: page }), true)];
    }),
  );
  const messages = new MessageList("Oldest messages", messageSize, pagers.list.element);
  const reserved = new Table("Reserved jobs", RESERVED_COLUMNS, { keyOf: (job) => job.id });
  const jobs = {
    reserved: tableSection("Jobs: reserved", "Table of reserved jobs", reserved, pagers.reserved.element),
    ...Object.fromEntries(LISTED.map((state) => [state, new MessageList(`Jobs: ${state}`, jobText, pagers[state].element)])),
  };
  const live = chart();
  let latest = null;
  let stream = null;
  let first = query.get("show");

  const groupTable = new Table("Groups of the log", GROUP_COLUMNS, { keyOf: (group) => group.id });
  const groups = tableSection("Groups", "Table of groups", groupTable);
  const waiting = tableSection("Clients that wait", "Table of waiting clients", clientTable(me));

  async function perform(action) {
    const isDone = await act(action, latest);
    if (isDone && action.name === "delete") location.hash = "#/queues";
  }

  function update(data) {
    main.removeAttribute("aria-busy");
    title.textContent = data.name || "(empty name)";
    document.title = `${data.name} – pressure-server`;
    if (data.gone) {
      show.notes("gone", () => h("p", { class: "failed" }, "There is no such queue."));
      show.buttons([], () => null);
      return;
    }
    latest = data.row;
    live.add(data.row);
    show.state([data.row.type, data.db, data.row.states, data.row.problems, data.row.warnings], () => [
      h("span", { class: "badge" }, data.row.type),
      data.db ? h("span", { class: "badge" }, `db ${data.db}`) : null,
      badges(data.row),
    ]);
    show.notes([data.row.problems, data.row.warnings], () =>
      [...data.row.problems, ...data.row.warnings].map((text) => h("p", { class: "note" }, text)),
    );
    const possible = ACTIONS.filter((action) => may(me, action) && (!action.suits || action.suits(data.row)));
    show.buttons(possible.map((action) => action.name), () =>
      possible.map((action) =>
        h("button", { type: "button", class: action.isDangerous ? "danger" : null, onclick: () => perform(action) }, action.title),
      ),
    );
    showFigures(data);
    messages.update(data.list);
    for (const state of STATES) jobs[state].update(data.jobs[state].map((job) => ({ ...job, now: data.now })));
    for (const [part, { count, before }] of Object.entries(data.pages)) {
      pagers[part].update(before / PAGE, Math.ceil(count / PAGE), count);
      pagers[part].element.hidden = count <= PAGE;
    }
    const isEmpty = !data.list.length && STATES.every((state) => !data.jobs[state].length);
    show.empty(isEmpty, () => isEmpty && h("p", { class: "muted" }, "The queue has no messages."));
    groups.update(data.groups.map((group) => ({ db: data.db, ...group })));
    waiting.update(data.clients);
    if (STATES.includes(first)) jobs[first].element.scrollIntoView();
    first = null;
  }

  function change(changes) {
    Object.assign(view, changes);
    stream?.close();
    stream = listen(`/api/queue/events?${new URLSearchParams(view)}`, update, lost);
  }

  main.setAttribute("aria-busy", "true");
  main.replaceChildren(
    h("p", {}, h("a", { href: "#/queues" }, "All queues")),
    title,
    elements.state,
    elements.notes,
    elements.buttons,
    h("h2", { class: "hidden" }, "Figures"),
    figureElement,
    live.element,
    groups.element,
    waiting.element,
    jobs.reserved.element,
    messages.element,
    ...LISTED.map((state) => jobs[state].element),
    elements.empty,
  );
  change({});
  return {
    close() {
      live.close();
      stream.close();
    },
  };
}

function decodeURIComponentSafely(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

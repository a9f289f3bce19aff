// The page of one queue.

import { act, ACTIONS, may } from "./actions.js";
import { listen } from "./api.js";
import { chart } from "./chart.js";
import { clientTable } from "./clients.js";
import { h, keeper } from "./dom.js";
import { bytes, duration, number, orDash, rate, times } from "./format.js";
import { messageSize, MessageList } from "./message.js";
import { badges } from "./overview.js";
import { Table } from "./table.js";

const STATES = ["ready", "delayed", "reserved", "buried"];

function total(count, perSecond) {
  return perSecond ? `${number(count)}, ${rate(perSecond)}/s` : number(count);
}

function figures({ row, info }) {
  const shown = [
    ["messages", number(row.messages)],
    ["oldest", row.age ? duration(row.age) : "–"],
    ["size", bytes(row.bytes)],
    ["bound", orDash(row.bound)],
    ["overflow", info.overflow],
    ["max-bytes", orDash(info.max_bytes)],
    ["ttl", info.ttl_ms ? duration(info.ttl_ms / 1000) : "–"],
    ["settings by", info.template ? `[queues."${info.template}"]` : "–"],
    ["put", total(info.put, row.put)],
    ["taken", total(info.taken, row.taken)],
    ["wait to put", number(row.waiting_producers)],
    ["wait to take", number(row.waiting_consumers)],
    ["dropped", orDash(info.dropped)],
    ["paused", info.paused_ms ? duration(info.paused_ms / 1000) : "–"],
    ["reservations timed out", orDash(info.timeouts)],
    ["max-deliveries", orDash(info.max_deliveries)],
    ["dead-letter", info.dead_letter || "–"],
    ["ack", info.ack + (info.ack_ttr_ms ? `, ack-ttr ${duration(info.ack_ttr_ms / 1000)}` : "") || "–"],
    ["retry-delay", info.retry_delay_ms ? duration(info.retry_delay_ms / 1000) : "–"],
    ["in-flight", orDash(info.in_flight)],
    ["rate", info.rate ? `${info.rate} ms` : "–"],
    ["unique", info.unique || "–"],
    ["producer role", `${info.producer_role}${info.producer ? `, last ${info.producer}` : ""}`],
    ["consumer role", `${info.consumer_role}${info.consumer ? `, last ${info.consumer}` : ""}`],
  ];
  return h("dl", { class: "figures" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function jobText(job) {
  return `job ${job.id}, ${messageSize(job)}, priority ${job.priority}, ${duration(job.age)} old, delivered ${times(job.reserves)}`;
}

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

/** Return a section with a table, which is hidden while the table has no rows. */
function tableSection(title, label, table) {
  return h(
    "section",
    { hidden: true },
    h("h2", {}, title),
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, table.element),
  );
}

/** Show a queue in an element; `query` may name jobs to `show` first. Return an object with `close`. */
export function showQueue(main, me, db, id, lost, query) {
  const title = h("h1", { class: "name" }, decodeURIComponentSafely(id));
  const parts = ["state", "notes", "buttons", "figures", "empty"];
  const elements = Object.fromEntries(parts.map((part) => [part, h("div", { class: part })]));
  const show = Object.fromEntries(parts.map((part) => [part, keeper(elements[part])]));
  const messages = new MessageList("Oldest messages", messageSize);
  const jobs = Object.fromEntries(STATES.map((state) => [state, new MessageList(`Jobs: ${state}`, jobText)]));
  const live = chart();
  let latest = null;
  let first = query.get("show");

  const groups = new Table("Groups of the log", GROUP_COLUMNS, { keyOf: (group) => group.id });
  const groupSection = tableSection("Groups", "Table of groups", groups);
  const clients = clientTable(me);
  const waiting = tableSection("Clients that wait", "Table of waiting clients", clients);

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
    show.figures({ row: data.row, info: data.info }, figures);
    messages.update(data.list);
    for (const state of STATES) jobs[state].update(data.jobs[state]);
    const isEmpty = !data.list.length && STATES.every((state) => !data.jobs[state].length);
    show.empty(isEmpty, () => isEmpty && h("p", { class: "muted" }, "The queue has no messages."));
    groupSection.hidden = !data.groups.length;
    groups.update(data.groups.map((group) => ({ db: data.db, ...group })));
    waiting.hidden = !data.clients.length;
    clients.update(data.clients);
    if (STATES.includes(first)) jobs[first].element.scrollIntoView();
    first = null;
  }

  main.setAttribute("aria-busy", "true");
  main.replaceChildren(
    h("p", {}, h("a", { href: "#/queues" }, "All queues")),
    title,
    elements.state,
    elements.notes,
    elements.buttons,
    h("h2", { class: "hidden" }, "Figures"),
    elements.figures,
    live.element,
    groupSection,
    waiting,
    messages.element,
    ...STATES.map((state) => jobs[state].element),
    elements.empty,
  );
  const stream = listen(`/api/queue/events?db=${encodeURIComponent(db)}&id=${encodeURIComponent(id)}`, update, lost);
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

// The page of one queue.

import { act, ACTIONS, may } from "./actions.js";
import { listen } from "./api.js";
import { chart } from "./chart.js";
import { clientTable } from "./clients.js";
import { h, keeper } from "./dom.js";
import { bytes, duration, number, orDash, rate } from "./format.js";
import { messageContent, messageSize } from "./message.js";
import { badges } from "./overview.js";

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
    ["if it is full", info.overflow],
    ["most bytes", orDash(info.max_bytes)],
    ["put", total(info.put, row.put)],
    ["taken", total(info.taken, row.taken)],
    ["wait to put", number(row.waiting_producers)],
    ["wait to take", number(row.waiting_consumers)],
    ["dropped", orDash(info.dropped)],
    ["paused", info.paused_ms ? duration(info.paused_ms / 1000) : "–"],
    ["reservations timed out", orDash(info.timeouts)],
    ["most deliveries", orDash(info.max_deliveries)],
    ["dead letters go to", info.dead_letter || "–"],
    ["unique", info.unique || "–"],
    ["producer role", `${info.producer_role}${info.producer ? `, last ${info.producer}` : ""}`],
    ["consumer role", `${info.consumer_role}${info.consumer ? `, last ${info.consumer}` : ""}`],
  ];
  return h("dl", { class: "figures" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function items(messages, describe, opened) {
  return h(
    "ol",
    { class: "messages" },
    messages.map((message) => h("li", {}, h("p", { class: "muted" }, describe(message)), messageContent(message, opened))),
  );
}

function jobText(job) {
  return `job ${job.id}, ${messageSize(job)}, priority ${job.priority}, ${duration(job.age)} old, delivered ${job.reserves} times`;
}

function content(data, opened) {
  const jobs = STATES.filter((state) => data.jobs[state].length);
  return [
    data.list.length > 0 && [h("h2", {}, "Oldest messages"), items(data.list, messageSize, opened)],
    jobs.map((state) => [
      h("h2", {}, `Jobs: ${state}`),
      items(data.jobs[state], jobText, opened),
    ]),
    !data.list.length && !jobs.length && h("p", { class: "muted" }, "The queue has no messages."),
  ];
}

function groups({ db, found }) {
  if (!found.length) return null;
  const titles = ["Group", "Next offset", "Lag", "Reserved", "Buried", "Missed"];
  return [
    h("h2", {}, "Groups"),
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, "Groups of the log"),
      h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
      h(
        "tbody",
        {},
        found.map((group) =>
          h(
            "tr",
            {},
            h("td", {}, h("a", { href: `#/queue/${db}/${group.id}` }, group.name)),
            [group.next, group.lag, group.reserved, group.buried, group.missed].map((value) =>
              h("td", { class: "number" }, number(value)),
            ),
          ),
        ),
      ),
    ),
  ];
}

/** Show a queue in an element. Return an object with `close`. */
export function showQueue(main, me, db, id, lost) {
  const title = h("h1", { class: "name" }, decodeURIComponentSafely(id));
  const parts = ["state", "notes", "buttons", "figures", "content", "groups", "waiting"];
  const elements = Object.fromEntries(parts.map((part) => [part, h("div", { class: part })]));
  const show = Object.fromEntries(parts.map((part) => [part, keeper(elements[part])]));
  const opened = new Set();
  const live = chart();
  let latest = null;

  const clients = clientTable(me);
  const waiting = h("section", { hidden: true }, h("h2", {}, "Clients that wait"), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of waiting clients" }, clients.element));

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
    show.content({ list: data.list, jobs: data.jobs }, (value) => content(value, opened));
    show.groups({ db: data.db, found: data.groups }, groups);
    waiting.hidden = !data.clients.length;
    clients.update(data.clients);
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
    elements.groups,
    waiting,
    elements.content,
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

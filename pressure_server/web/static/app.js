// The console: the user, the view that is shown, and keys.

import { maySeeClients } from "./actions.js";
import { get, post } from "./api.js";
import { showClients } from "./clients.js";
import { tell } from "./dialogs.js";
import { h } from "./dom.js";
import { showLogin } from "./login.js";
import { showOverview } from "./overview.js";
import { showQueue } from "./queue.js";
import { showServers } from "./servers.js";
import { showError, watchErrors } from "./status.js";
import { watchTheme } from "./theme.js";

const main = document.getElementById("main");
let view = null;
let me = null;

const KEYS = [
  ["/", "go to the filter"],
  ["↓ ↑", "move between rows"],
  ["Enter", "open the queue"],
  ["q", "show the queues"],
  ["c", "show the clients"],
  ["s", "show the servers"],
  ["Esc", "close a dialog, or leave the filter"],
  ["?", "show these keys"],
];

/** Ask for the present user. Return whether the login form is shown, because the login has ended. */
async function lost() {
  try {
    me = await get("/api/me");
  } catch {
    return false; // the server is away
  }
  if (me.needs_login) start();
  return me.needs_login;
}

function showUser() {
  document.getElementById("user").textContent = me.has_logged_in ? me.user : "";
  document.getElementById("log-out").hidden = !me.has_logged_in;
  document.getElementById("clients-link").hidden = !maySeeClients(me);
}

function route() {
  view?.close();
  view = null;
  const [path, options = ""] = location.hash.split("?");
  const [, name = "queues", db, id] = path.split("/");
  const query = new URLSearchParams(options);
  for (const link of document.querySelectorAll("nav[aria-label=Views] a")) {
    const isHere = link.hash.slice(2) === name;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (name === "queue" && id !== undefined) view = showQueue(main, me, db, id, lost, query);
  else if (name === "clients") view = showClients(main, me, lost, query);
  else if (name === "servers") view = showServers(main, lost);
  else view = showOverview(main, me, lost, query);
  document.title = `${main.querySelector("h1").textContent} – pressure-server`;
}

async function start() {
  view?.close();
  view = null;
  try {
    me = await get("/api/me");
  } catch (error) {
    showError(`The server cannot be reached: ${error.message}`);
    return;
  }
  showUser();
  if (me.needs_login) view = showLogin(main, start);
  else route();
}

function showKeys() {
  tell("Keys", h("dl", { class: "keys" }, KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))));
}

function press(event) {
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && isTyping && !event.target.closest("dialog")) {
    event.target.blur();
    main.focus();
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const actions = {
    "/": () => document.getElementById("filter")?.focus(),
    "?": showKeys,
    q: () => (location.hash = "#/queues"),
    c: () => (location.hash = "#/clients"),
    s: () => (location.hash = "#/servers"),
    ArrowDown: () => document.querySelector("tbody a")?.focus(),
  };
  if (!actions[event.key] || (event.key === "ArrowDown" && event.target.closest("tbody"))) return;
  event.preventDefault();
  actions[event.key]();
}

watchErrors();
watchTheme(document.getElementById("theme"));
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("log-out").addEventListener("click", async () => {
  await post("/api/logout", {});
  start();
});
document.addEventListener("keydown", press);
window.addEventListener("hashchange", () => {
  if (me === null || me.needs_login || location.hash === "#main") return;
  route();
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
start();

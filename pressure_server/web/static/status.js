// What the page tells about itself: the connection, results of actions, and errors of its scripts.

import { fill, h } from "./dom.js";
import { clock } from "./format.js";

const LIVE = "live";
const MAX_REPORTS = 5;
const RESULT_SECONDS = 8;
let reports = 0;
let timer = null;

/**
 * Show whether the figures are live. Otherwise `state` tells it in a few words, and `reason` why the server is not
 * ready. `since` is the time of the figures in milliseconds, if these are old.
 */
export function showConnection(state = LIVE, reason = "", since = null) {
  show("connection", state, state === LIVE ? "good" : "bad");
  const sentences = [reason && `Not ready: ${reason}.`, since && `The figures are from ${clock(since / 1000)}.`];
  show("outage", sentences.filter(Boolean).join(" "), "failed");
  document.getElementById("main").classList.toggle("stale", since !== null);
}

/** Return whether the figures are live. */
export function isLive() {
  return document.getElementById("connection").textContent === LIVE;
}

function show(id, text, className) {
  const element = document.getElementById(id);
  if (element.textContent === text) return;
  element.className = className;
  element.textContent = text;
}

/** Show and announce what an action did. */
export function showResult(text, isDone = true) {
  const element = document.getElementById("results");
  fill(element, h("p", { class: isDone ? "done" : "failed" }, text));
  clearTimeout(timer);
  timer = setTimeout(() => fill(element), RESULT_SECONDS * 1000);
}

/** Show an error until it is dismissed. */
export function showError(text) {
  const element = document.getElementById("errors");
  const line = h("p", {}, text, " ", h("button", { type: "button", onclick: () => line.remove() }, "Dismiss"));
  element.append(line);
  while (element.children.length > 3) element.firstChild.remove();
}

function report(text) {
  showError(`An error in this page: ${text}`);
  reports += 1;
  if (reports > MAX_REPORTS) return;
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ text: text.slice(0, 500) });
  fetch("/api/errors", { method: "POST", headers, body }).catch(() => {});
}

/** Show errors of scripts, and report them to the server. */
export function watchErrors() {
  window.addEventListener("error", (event) => report(`${event.message} (${event.filename}:${event.lineno})`));
  window.addEventListener("unhandledrejection", (event) => report(String(event.reason)));
}

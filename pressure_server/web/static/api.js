// Requests to the server, and its streams of events.

import { showConnection } from "./status.js";

const RETRY_AFTER = 2000; // milliseconds

/** Thrown if the server refuses a request: `status` and the text that it gives. */
export class Refused extends Error {
  constructor(status, text) {
    super(text.trim() || `the server answered ${status}`);
    this.status = status;
  }
}

async function checked(response) {
  if (!response.ok) throw new Refused(response.status, await response.text());
  return response;
}

/** Return the JSON that a path answers. */
export async function get(path) {
  return (await checked(await fetch(path))).json();
}

/** Send JSON, and return the response. */
export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return checked(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** Return why the server refuses a stream, as an EventSource does not tell it; null if it does not. */
async function refusal(path) {
  const aborting = new AbortController();
  try {
    const response = await fetch(path, { signal: aborting.signal });
    return response.ok ? null : new Refused(response.status, await response.text());
  } catch {
    return null; // the server is away
  } finally {
    aborting.abort();
  }
}

/**
 * Listen to a stream of events until `close` of the result is called. `show` gets each event's data. `lost` is
 * called if the stream breaks off, and returns whether the login form is shown instead.
 *
 * A page that is not visible does not listen: a browser has six connections to a server, for all its tabs.
 */
export function listen(path, show, lost) {
  let source = null;
  let timer = null;
  let isClosed = false;
  let hasShown = false;
  let since = null; // the time of the figures that are shown, if these are old

  function open() {
    source = new EventSource(path);
    source.onmessage = (event) => {
      const data = JSON.parse(event.data);
      if (data.error) age();
      else since = data.stale ? since ?? Date.now() - 1000 * data.stale : null;
      showConnection(data.not_ready ? "not ready" : data.error, data.not_ready || "", since);
      if (data.error) return;
      hasShown = true;
      show(data);
    };
    source.onerror = () => retry(source);
  }

  /** Note that the figures that are shown become old. */
  function age() {
    if (hasShown) since ??= Date.now();
  }

  async function retry(failed) {
    const isRefused = failed.readyState === EventSource.CLOSED;
    failed.close();
    if (isClosed || failed !== source) return;
    age();
    showConnection("connection lost, trying again", "", since);
    if (await lost()) return;
    const reason = isRefused ? await refusal(path) : null;
    if (isClosed || failed !== source) return;
    if (reason !== null) showConnection(reason.message, "", since);
    const isFinal = reason !== null && reason.status < 500;
    if (!isFinal) timer = setTimeout(open, RETRY_AFTER);
  }

  function pauseOrResume() {
    clearTimeout(timer);
    source?.close();
    source = null;
    if (!document.hidden) open();
  }

  document.addEventListener("visibilitychange", pauseOrResume);
  pauseOrResume();
  return {
    close() {
      isClosed = true;
      document.removeEventListener("visibilitychange", pauseOrResume);
      clearTimeout(timer);
      source?.close();
    },
  };
}

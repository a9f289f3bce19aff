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

/**
 * Listen to a stream of events until `close` of the result is called. `show` gets each event's data. `lost` is
 * called if the server refuses the stream, for example because the login has ended.
 */
export function listen(path, show, lost) {
  let source = null;
  let timer = null;
  let isClosed = false;
  function open() {
    source = new EventSource(path);
    source.onopen = () => showConnection(true);
    source.onmessage = (event) => {
      const data = JSON.parse(event.data);
      showConnection(!data.error, data.error);
      if (!data.error) show(data);
    };
    source.onerror = async () => {
      showConnection(false);
      source.close();
      // An EventSource does not tell the status of a refusal.
      if (!isClosed && !(await lost())) timer = setTimeout(open, RETRY_AFTER);
    };
  }
  open();
  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      source.close();
    },
  };
}

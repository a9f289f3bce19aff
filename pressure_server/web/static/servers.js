// The page of servers: the processes of this server, its peers, and the shards of the backend.

import { listen } from "./api.js";
import { h } from "./dom.js";
import { bytes, duration, number, orDash } from "./format.js";
import { Table, tableSection } from "./table.js";

const PROCESSES = [
  { key: "name", title: "Process", isLong: true },
  { key: "role", title: "Role" },
  { key: "connected", title: "Clients", isNumber: true, show: (row) => number(row.connected) },
  { key: "blocked", title: "Waiting", isNumber: true, show: (row) => orDash(row.blocked) },
  { key: "throttled", title: "Throttled", isNumber: true, show: (row) => orDash(row.throttled) },
  { key: "commands_per_second", title: "Commands/s", isNumber: true, show: (row) => orDash(row.commands_per_second) },
  { key: "buffered_bytes", title: "Buffers", isNumber: true, show: (row) => bytes(row.buffered_bytes) },
  { key: "resident_bytes", title: "Memory", isNumber: true, show: (row) => bytes(row.resident_bytes) },
  { key: "seconds", title: "Processor time", isNumber: true, show: (row) => duration(row.seconds) },
];
const PEERS = [
  { key: "name", title: "Peer", isLong: true },
  { key: "silent", title: "Last heartbeat", isNumber: true, show: (row) => `${duration(row.silent)} ago` },
  { key: "timeout", title: "proxy-timeout", isNumber: true, show: (row) => duration(row.timeout) },
  { key: "has_same_library", title: "Version", show: (row) => (row.has_same_library ? "as this server" : "another") },
];
const SHARDS = [
  { key: "number", title: "Shard", show: (row) => `shard ${row.number}` },
  {
    key: "not_ready",
    title: "State",
    isLong: true,
    show: ({ not_ready }) => (not_ready ? [h("span", { class: "badge problem" }, "not ready"), ` ${not_ready}`] : "ready"),
  },
  { key: "prefix", title: "Prefix", isLong: true },
  { key: "node", title: "Node", isLong: true },
  { key: "lost_calls", title: "Lost calls", isNumber: true, show: (row) => orDash(row.lost_calls) },
];

/** Show the servers in an element. Return an object with `close`. */
export function showServers(main, lost) {
  const section = (title, columns) =>
    tableSection(title, `Table of ${title.toLowerCase()}`, new Table(title, columns, { keyOf: (row) => row[columns[0].key] }));
  const processes = section("Processes", PROCESSES);
  const peers = section("Peers", PEERS);
  const shards = section("Shards", SHARDS);
  const alone = h("p", { class: "muted" });
  main.setAttribute("aria-busy", "true");
  main.replaceChildren(h("h1", {}, "Servers"), processes.element, peers.element, alone, shards.element);
  return listen(
    "/api/servers/events",
    (data) => {
      main.removeAttribute("aria-busy");
      processes.update(data.processes);
      peers.update(data.peers);
      alone.textContent = data.peers.length ? "" : "No other server uses this backend.";
      shards.update(data.shards);
    },
    lost,
  );
}

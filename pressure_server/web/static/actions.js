// The actions: which rights each needs, what it asks, and what it sends.

import { post, Refused } from "./api.js";
import { ask, tell } from "./dialogs.js";
import { h } from "./dom.js";
import { counted } from "./format.js";
import { messageContent } from "./message.js";
import { showResult } from "./status.js";

const ACK = [
  ["", "as it is"],
  ["NEXT", "next: a popped message is kept until the client's next pop"],
  ["FINAL", "final: a popped message is gone"],
];
const OVERFLOW = [
  ["", "as it is"],
  ["BLOCK", "block: puts wait for room"],
  ["ERROR", "error: puts fail"],
  ["OVERWRITE", "overwrite: the oldest messages are dropped"],
];
const FORMS = [
  ["text", "text, in UTF-8"],
  ["hex", "hexadecimal digits"],
];
const TYPES = [
  ["FIFO", "fifo"],
  ["JOBS", "jobs"],
  ["LOG", "log"],
  ["LIFO", "lifo"],
  ["RANDOM", "random"],
];
const hasJobs = (row) => ["jobs", "lifo", "random", "group"].includes(row.type);

/** The actions on a queue, in the order of their buttons. `suits` tells for which queues; `body` makes the body. */
export const ACTIONS = [
  {
    name: "put",
    title: "Put a message",
    needs: ["put"],
    text: (row) => `Put a message into ${row.name}.`,
    fields: (row) => [
      { name: "message", label: "Message", type: "textarea" },
      { name: "form", label: "Written as", options: FORMS },
      ...(row.type === "jobs"
        ? [
            { name: "priority", label: "priority", hint: "empty for 1024; 0 is the most urgent", type: "number" },
            { name: "delay", label: "delay", hint: "seconds", type: "number" },
            { name: "ttr", label: "ttr", hint: "seconds for which a worker may keep it; empty for 60", type: "number" },
          ]
        : []),
      ...(row.type === "log"
        ? []
        : [{ name: "expire", label: "expire", hint: "seconds until it is dropped, if nobody takes it", type: "number" }]),
    ],
    body: ({ form, message, ...options }) =>
      form === "hex" ? { hex: message.replace(/\s+/g, ""), ...options } : { message, ...options },
    confirm: "Put",
    suits: (row) => row.type !== "group",
  },
  {
    name: "take",
    title: "Take one",
    needs: ["get"],
    text: (row) => `Take the next message of ${row.name}? It leaves the queue, and is shown to you.`,
    confirm: "Take",
    suits: (row) => row.type !== "log",
  },
  {
    name: "kick",
    title: "Kick jobs",
    needs: ["administer"],
    text: () => "Make buried jobs ready; if none are buried, delayed jobs.",
    fields: () => [{ name: "count", label: "Most jobs", type: "number", value: "1", required: true }],
    confirm: "Kick",
    suits: hasJobs,
  },
  {
    name: "redrive",
    title: "Redrive",
    needs: ["administer"],
    text: (row) => `Put the dead letters in ${row.name} back into the queues from which they came?`,
    fields: () => [
      { name: "to", label: "to", hint: "one queue for all; empty for those from which they came" },
      { name: "count", label: "count", hint: "the most jobs; empty for all", type: "number" },
    ],
    confirm: "Redrive",
    suits: (row) => row.type === "jobs" && row.messages > 0,
  },
  {
    name: "bury",
    title: "Bury the next job",
    needs: ["get"],
    text: (row) => `Set the next job of ${row.name} aside until it is kicked?`,
    confirm: "Bury",
    suits: hasJobs,
  },
  {
    name: "pause",
    title: "Pause",
    needs: ["administer"],
    text: (row) => `Let nobody take or reserve from ${row.name} for some time; 0 ends a pause.`,
    fields: () => [{ name: "seconds", label: "Seconds", type: "number", value: "60", required: true }],
    confirm: "Pause",
    suits: hasJobs,
  },
  {
    name: "alter",
    title: "Alter",
    needs: ["administer"],
    text: (row) => `Change settings of ${row.name}. Empty fields stay as they are; 0 takes a limit away.`,
    fields: (row) => [
      { name: "bound", label: "bound", hint: "the most messages", type: "number", value: String(row.bound) },
      { name: "overflow", label: "overflow", hint: "what a put on a full queue does", options: OVERFLOW },
      { name: "max_bytes", label: "max-bytes", hint: "the most bytes of all messages", type: "number" },
      { name: "ttl", label: "ttl", hint: "seconds without messages and use until it is deleted", type: "number" },
      ...(hasJobs(row)
        ? [
            { name: "max_deliveries", label: "max-deliveries", hint: "the most deliveries of a job", type: "number" },
            { name: "dead_letter", label: "dead-letter", hint: "the queue to which jobs go after these" },
            { name: "retry_delay", label: "retry-delay", hint: "seconds until a failed job is tried again", type: "number" },
            { name: "retry_delay_max", label: "retry-delay-max", hint: "the delay doubles, up to this", type: "number" },
            { name: "in_flight", label: "in-flight", hint: "the most jobs that are reserved at a time", type: "number" },
            { name: "rate", label: "rate", hint: "the most jobs in a time: 10/1 is ten a second" },
          ]
        : []),
      { name: "ack", label: "ack", hint: "when a pop is done", options: ACK },
      { name: "ack_ttr", label: "ack-ttr", hint: "seconds for which a client may keep what it has popped", type: "number" },
    ],
    confirm: "Alter",
  },
  {
    name: "repair",
    title: "Repair",
    needs: ["administer"],
    text: () => "Examine the queue for 5 seconds, and repair what dead native clients have left?",
    confirm: "Repair",
    suits: (row) => row.problems.length > 0,
  },
  {
    name: "close",
    title: "Close",
    needs: ["administer"],
    text: (row) => `Close ${row.name}? Later puts fail, for ever. Its messages can still be taken.`,
    confirm: "Close the queue",
    isDangerous: true,
    suits: (row) => !row.states.includes("closed"),
  },
  {
    name: "purge",
    title: "Purge",
    needs: ["get", "administer"],
    text: (row) => `Delete ${counted(row.messages, "message")} of ${row.name}? They cannot be restored.`,
    confirm: "Delete the messages",
    isDangerous: true,
  },
  {
    name: "delete",
    title: "Delete",
    needs: ["administer"],
    text: (row) => `Delete ${row.name} and its ${counted(row.messages, "message")}? They cannot be restored.`,
    confirm: "Delete the queue",
    isDangerous: true,
  },
];

/** Create a queue. */
export const CREATE = {
  name: "create",
  title: "Create a queue",
  needs: ["administer"],
  text: () => "The first put creates a queue, too. Create one to bound it, or to choose its type.",
  fields: () => [
    { name: "name", label: "Name", required: true },
    { name: "type", label: "type", options: TYPES },
    { name: "bound", label: "bound", hint: "the most messages; empty for any number", type: "number" },
  ],
  confirm: "Create",
};

/** Return whether the user has the rights for an action. */
export function may(me, action) {
  return action.needs.every((right) => me.may.includes(right));
}

/** Return whether the user may see all clients. */
export function maySeeClients(me) {
  return me.may.includes("administer") && me.all_queues;
}

/** Send an action, and tell its result. Return whether it was done. */
export async function send(body) {
  try {
    const response = await post("/api/actions", body);
    if (response.headers.get("Content-Type") !== "application/json; charset=utf-8") {
      showMessage(new Uint8Array(await response.arrayBuffer()));
      showResult("the message was taken");
      return true;
    }
    const { done, text } = await response.json();
    showResult(text, done);
    return done;
  } catch (error) {
    showResult(error instanceof Refused ? error.message : `the server could not be reached (${error.message})`, false);
    return false;
  }
}

/** Ask for what an action on a queue needs, and do it. Return whether it was done. */
export async function act(action, row) {
  const answer = await ask({
    title: action.title,
    text: action.text(row),
    fields: action.fields ? action.fields(row) : [],
    confirm: action.confirm,
    isDangerous: action.isDangerous,
  });
  if (answer === null) return false;
  const { name, ...others } = action.body ? action.body(answer) : answer;
  const queue = name === undefined ? row.id : encodeURIComponent(name);
  return send({ action: action.name, db: row.db, queue, ...others });
}

function showMessage(data) {
  let message;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    message = { size: data.length, text };
  } catch {
    message = { size: data.length, hex: Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("") };
  }
  const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  tell("The message", [
    messageContent(message),
    h("p", {}, h("a", { href: url, download: "message" }, "Save it as a file")),
  ]);
}

// Messages as people read them: text, folded JSON, or hexadecimal digits.

import { arrange, h } from "./dom.js";
import { bytes } from "./format.js";

const PER_LINE = 16;
const SUMMARY = 100;
const DEEPEST_INDENT = 40;
const JSON_PARTS = /"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[{}[\],:]|\s+/g;

function isJson(text) {
  return /^\s*[[{]/.test(text);
}

/** Return JSON with one value on each line, as it is written: JSON.parse would round numbers and drop repeated names. */
function indent(text) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEEPEST_INDENT))}`;
  return text.replace(JSON_PARTS, (part) => {
    if (part.startsWith('"')) return part;
    if (part === ",") return part + line();
    if (part === ":") return ": ";
    if (part === "{" || part === "[") {
      depth += 1;
      return part + line();
    }
    if (part === "}" || part === "]") {
      depth -= 1;
      return line() + part;
    }
    return part.replace(/\s+/, ""); // an empty object or list, or white space
  });
}

function hexDump(digits) {
  const lines = [];
  for (let at = 0; at < digits.length; at += 2 * PER_LINE) {
    const pairs = digits.slice(at, at + 2 * PER_LINE).match(/../g);
    const text = pairs.map((pair) => {
      const code = parseInt(pair, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : ".";
    });
    lines.push(
      `${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(3 * PER_LINE - 1)}  ${text.join("")}`,
    );
  }
  return lines.join("\n");
}

/** Return the content of a message {size, text | hex}. */
export function messageContent(message) {
  if (message.hex !== undefined) return h("pre", { tabindex: 0, "aria-label": "bytes" }, hexDump(message.hex));
  const isWhole = new TextEncoder().encode(message.text).length >= message.size;
  if (isWhole && isJson(message.text)) {
    try {
      JSON.parse(message.text);
      const summary = message.text.length > SUMMARY ? `${message.text.slice(0, SUMMARY)}…` : message.text;
      return h(
        "details",
        {},
        h("summary", {}, h("code", {}, summary)),
        h("pre", { tabindex: 0, "aria-label": "JSON" }, indent(message.text)),
      );
    } catch {
      // It only looks like JSON.
    }
  }
  return h("pre", { tabindex: 0, "aria-label": "text" }, message.text);
}

/** Return the size of a message, and how much of it is shown. */
export function messageSize(message) {
  if (message.size < 0) return "not shown: dropped, or far from both ends of the log";
  const shown = message.hex !== undefined ? message.hex.length / 2 : new TextEncoder().encode(message.text).length;
  return shown < message.size ? `first ${bytes(shown)} of ${bytes(message.size)}` : bytes(message.size);
}

/** A list of messages under a title, with the controls for its pages. A message that stays keeps its element, and with it focus and selection. */
export class MessageList {
  constructor(title, describe, pages) {
    this.describe = describe;
    this.items = new Map();
    this.list = h("ol", { class: "messages" });
    this.element = h("section", { hidden: true }, h("h2", {}, title), pages, this.list);
  }

  /** Show these messages, in this order. */
  update(messages) {
    const kept = new Map();
    for (const message of messages) {
      const key = this.keyOf(message, kept);
      const item = this.items.get(key) || this.item(message);
      kept.set(key, item);
      const text = this.describe(message);
      if (item.about.textContent !== text) item.about.textContent = text;
    }
    arrange(this.list, Array.from(kept.values(), (item) => item.element));
    this.items = kept;
    this.element.hidden = !messages.length;
  }

  /** Jobs have ids; the messages of a list are told apart by what they are, and by how many are equal. */
  keyOf(message, taken) {
    const content = JSON.stringify([message.id, message.size, message.text, message.hex]);
    let count = 0;
    while (taken.has(`${count} ${content}`)) count += 1;
    return `${count} ${content}`;
  }

  item(message) {
    const about = h("p", { class: "muted" });
    return { about, element: h("li", {}, about, messageContent(message)) };
  }
}

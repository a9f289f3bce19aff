// Messages as people read them: text, folded JSON, or hexadecimal digits.

import { h } from "./dom.js";
import { bytes } from "./format.js";

const PER_LINE = 16;
const SUMMARY = 100;

function isJson(text) {
  return /^\s*[[{]/.test(text);
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

/** Return the content of a message {size, text | hex}. `opened` is a set of the texts that are unfolded. */
export function messageContent(message, opened = new Set()) {
  if (message.hex !== undefined) return h("pre", { tabindex: 0, "aria-label": "bytes" }, hexDump(message.hex));
  const isWhole = new TextEncoder().encode(message.text).length >= message.size;
  if (isWhole && isJson(message.text)) {
    try {
      const pretty = JSON.stringify(JSON.parse(message.text), null, 2);
      const summary = message.text.length > SUMMARY ? `${message.text.slice(0, SUMMARY)}…` : message.text;
      return h(
        "details",
        {
          open: opened.has(message.text),
          ontoggle: (event) => (event.target.open ? opened.add(message.text) : opened.delete(message.text)),
        },
        h("summary", {}, h("code", {}, summary)),
        h("pre", { tabindex: 0, "aria-label": "JSON" }, pretty),
      );
    } catch {
      // It only looks like JSON.
    }
  }
  return h("pre", { tabindex: 0, "aria-label": "text" }, message.text);
}

/** Return the size of a message, and how much of it is shown. */
export function messageSize(message) {
  const shown = message.hex !== undefined ? message.hex.length / 2 : new TextEncoder().encode(message.text).length;
  return shown < message.size ? `first ${bytes(shown)} of ${bytes(message.size)}` : bytes(message.size);
}

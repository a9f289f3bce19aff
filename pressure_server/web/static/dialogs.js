// Dialogs: a form that asks before something is done, and a text that is shown.

import { h } from "./dom.js";

let number = 0;

function open(title, content, buttons) {
  number += 1;
  const id = `dialog-${number}`;
  const dialog = h(
    "dialog",
    { "aria-labelledby": id },
    h("h2", { id }, title),
    content,
    h("p", { class: "buttons" }, buttons),
  );
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function field(description) {
  number += 1;
  const id = `field-${number}`;
  const { name, label, type = "text", options, value = "", required = false, hint } = description;
  const properties = { id, name, required, "aria-describedby": hint ? `${id}-hint` : null };
  let input;
  if (options) {
    input = h(
      "select",
      properties,
      options.map(([choice, text]) => h("option", { value: choice, selected: choice === value }, text)),
    );
  } else if (type === "textarea") {
    input = h("textarea", { ...properties, rows: 5, spellcheck: "false" }, value);
  } else {
    input = h("input", { ...properties, type, value, min: type === "number" ? 0 : null, autocomplete: "off" });
  }
  return h("p", {}, h("label", { for: id }, label), input, hint && h("small", { id: `${id}-hint` }, hint));
}

/** Ask for the values of fields. Resolve to an object of strings, or to null if the reader cancels. */
export function ask({ title, text, fields = [], confirm, isDangerous = false }) {
  return new Promise((resolve) => {
    let answer = null;
    const form = h(
      "form",
      {
        id: `form-${(number += 1)}`,
        onsubmit: (event) => {
          event.preventDefault();
          answer = Object.fromEntries(new FormData(form));
          dialog.close();
        },
      },
      h("p", {}, text),
      fields.map(field),
    );
    const dialog = open(title, form, [
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "submit", form: form.id, class: isDangerous ? "danger" : "primary" }, confirm),
    ]);
    dialog.addEventListener("close", () => resolve(answer));
    (form.querySelector("input, textarea, select") || dialog.querySelector(".buttons button"))?.focus();
  });
}

/** Show content until the reader closes it. */
export function tell(title, content) {
  const dialog = open(title, content, [
    h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"),
  ]);
  dialog.querySelector(".buttons button").focus();
}

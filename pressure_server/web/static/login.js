// The login form.

import { post, Refused } from "./api.js";
import { fill, h } from "./dom.js";

/** Show the form in an element; call `done` after the login. Return an object with `close`. */
export function showLogin(main, done) {
  const failed = h("div", { role: "alert" });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h(
    "form",
    {
      class: "login",
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          await post("/api/login", Object.fromEntries(new FormData(form)));
          done();
        } catch (error) {
          const isWrong = error instanceof Refused && error.status === 401;
          fill(failed, h("p", { class: "failed" }, isWrong ? "The user or the password is wrong." : error.message));
          button.disabled = false;
        }
      },
    },
    h("h1", {}, "Log in"),
    h("p", {}, h("label", { for: "login-user" }, "User"), h("input", { id: "login-user", name: "user", value: "default", autocomplete: "username", required: true })),
    h("p", {}, h("label", { for: "login-password" }, "Password"), h("input", { id: "login-password", name: "password", type: "password", autocomplete: "current-password", required: true })),
    failed,
    h("p", { class: "buttons" }, button),
  );
  main.replaceChildren(form);
  form.querySelector("#login-password").focus();
  return { close() {} };
}

// The theme: as the system has it, light, or dark.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const TITLES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function stored() {
  const theme = localStorage.getItem("theme");
  return theme in NEXT ? theme : "auto";
}

function use(button, theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = TITLES[theme];
  window.dispatchEvent(new Event("theme"));
}

/** Let the button change the theme. Each change is a `theme` event of the window. */
export function watchTheme(button) {
  use(button, stored());
  button.addEventListener("click", () => {
    const theme = NEXT[stored()];
    localStorage.setItem("theme", theme);
    use(button, theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => use(button, stored()));
}

/** Return the value of a colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

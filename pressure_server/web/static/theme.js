// The theme: as the system has it, light, or dark.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const TITLES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

let theme = "auto";

/** Return the stored theme. Browsers may refuse to store anything. */
function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function store() {
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // The theme lasts as long as the page.
  }
}

function use(button) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = TITLES[theme];
  window.dispatchEvent(new Event("theme"));
}

/** Let the button change the theme. Each change is a `theme` event of the window. */
export function watchTheme(button) {
  if (stored() in NEXT) theme = stored();
  use(button);
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    store();
    use(button);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => use(button));
}

/** Return the value of a colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

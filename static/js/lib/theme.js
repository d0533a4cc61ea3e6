// Theme: system, light or dark; whoever paints on a canvas listens for "meridian:theme".
import { recall, remember } from "./storage.js";

const ORDER = ["system", "light", "dark"];

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("meridian:theme"));
}

export function initTheme() {
  const button = document.querySelector("[data-theme-toggle]");
  let theme = ORDER.includes(recall("theme")) ? recall("theme") : "system";
  const label = () => { if (button) button.textContent = `Theme: ${theme}`; };
  label();
  button?.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    remember("theme", theme === "system" ? null : theme);
    apply(theme);
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(theme));
}

// Floating menus are <details data-menu-float>: one open at a time; Escape and a click beside it close it.
import { $$ } from "./dom.js";

const open = () => $$("details[data-menu-float][open]");

export function initMenus() {
  document.addEventListener("click", (event) => {
    for (const menu of open()) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of open()) {
      menu.open = false;
      menu.querySelector("summary")?.focus();
    }
  });
}

// What every page does: theme, menu, keys, find, buttons that say they are at work.
import { $, $$ } from "./lib/dom.js";
import { initFind } from "./lib/find.js";
import { initKeys } from "./lib/keys.js";
import { initTheme } from "./lib/theme.js";

function initMenu() {
  const nav = $("[data-nav]"), button = $("[data-menu]");
  button?.addEventListener("click", () => {
    const open = nav.classList.toggle("is-open");
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Close" : "Menu";
  });
}

// A form is sent once: the button stays where it is and the bar shows that something goes on.
function initBusyForms() {
  for (const form of $$("form[data-busy]")) {
    form.addEventListener("submit", () => {
      $("#loading")?.classList.add("is-loading");
      setTimeout(() => $$("button:not([type=button])", form).forEach((b) => { b.disabled = true; }));
    });
  }
  addEventListener("pageshow", (event) => {
    if (event.persisted) $$("form[data-busy] button").forEach((b) => { b.disabled = false; });
  });
}

initTheme();
initMenu();
initFind();
initKeys();
initBusyForms();

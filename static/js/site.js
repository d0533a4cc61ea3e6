// What every page does: theme, times in the reader's zone, menus, keys, find, copying, asking first, lists.
import { $, $$ } from "./lib/dom.js";
import { initConfirm } from "./lib/confirm.js";
import { initCopy } from "./lib/copy.js";
import { initFind } from "./lib/find.js";
import { initFolds } from "./lib/folds.js";
import { initKeys } from "./lib/keys.js";
import { initLists } from "./lib/lists.js";
import { initMenus } from "./lib/menus.js";
import { initTheme } from "./lib/theme.js";
import { initTimes } from "./lib/times.js";

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
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.busy === undefined || event.defaultPrevented) return;
    $("#loading")?.classList.add("is-loading");
    setTimeout(() => $$("button:not([type=button])", form).forEach((b) => { b.disabled = true; }));
  });
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    $("#loading")?.classList.remove("is-loading");
    $$("form[data-busy] button").forEach((b) => { b.disabled = false; });
  });
}

initConfirm(); // before the busy forms: a form that is asked about is not at work yet
initTheme();
initTimes();
initMenu();
initMenus();
initCopy();
initLists();
initFind();
initFolds();
initKeys();
initBusyForms();

// Lists: addresses without empty filters, a head that stays in sight, and a failure said where the list is.
import { $, $$, el } from "./dom.js";

// "?q=&state=running" says no more than "?state=running".
function initFilters() {
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt.id !== "filter") return;
    const { parameters } = event.detail;
    for (const key of Object.keys(parameters)) if (parameters[key] === "") delete parameters[key];
    // The reader's zone says when a day begins: where no day is asked for it says nothing.
    if (!parameters.since && !parameters.until) delete parameters.zone;
  });
}

// A head can only stay at the top of the window where its table does not scroll by itself. Cells that scripts
// fill, and figures that grow, widen a table later.
const widths = new ResizeObserver(fit);
function fit() {
  for (const wrap of $$("[data-table-wrap], .table-wrap")) {
    widths.observe(wrap.firstElementChild);
    wrap.classList.add("fits");
    const fits = wrap.firstElementChild.scrollWidth <= wrap.clientWidth + 1;
    wrap.classList.toggle("fits", fits);
    // What scrolls and has nothing to stop at must itself be reachable by keyboard.
    if (fits || $("a, button, input, summary", wrap)) wrap.removeAttribute("tabindex");
    else wrap.tabIndex = 0;
  }
}

function initFailures() {
  const box = $("#messages");
  const say = (text) => {
    $$(".message.load", box).forEach((old) => old.remove());
    if (text) box?.append(el("p", { className: "message error load" }, text));
  };
  const since = () => new Date().toLocaleTimeString("en-GB");
  document.body.addEventListener("htmx:sendError", () => say(`The site does not answer (${since()}). The list shows the last answer.`));
  document.body.addEventListener("htmx:responseError", (event) => {
    const { status } = event.detail.xhr;
    if (status === 403 || status === 401) location.reload();
    else say(`The site failed on this (${status}, ${since()}). The list shows the last answer.`);
  });
  document.body.addEventListener("htmx:afterOnLoad", () => say(""));
}

// A list that refreshes itself must not take the focus from whoever reads it: the same link gets it back.
function initFocus() {
  let href = null;
  document.body.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const focused = document.activeElement;
    href = focused?.tagName === "A" && detail.target.contains(focused) ? focused.getAttribute("href") : null;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    const link = href && $$("main a[href]").find((a) => a.getAttribute("href") === href);
    if (!link) return;
    link.focus({ preventScroll: true });
    link.closest("table[data-rows] tbody tr")?.classList.add("is-focused");
    href = null;
  });
}

// One box ticks every row of the page.
function initChoice() {
  document.body.addEventListener("change", ({ target }) => {
    const table = target.closest("table");
    if (target.matches("[data-choose-all]")) for (const box of $$("input[name=pk]", table)) box.checked = target.checked;
    else if (target.matches("td.choose input")) {
      const all = $("[data-choose-all]", table), boxes = $$("input[name=pk]", table);
      all.checked = boxes.every((box) => box.checked);
      all.indeterminate = !all.checked && boxes.some((box) => box.checked);
    }
  });
}

export function initLists() {
  initChoice();
  initFocus();
  initFilters();
  initFailures();
  fit();
  addEventListener("resize", fit);
  document.body.addEventListener("htmx:afterSettle", fit);
}

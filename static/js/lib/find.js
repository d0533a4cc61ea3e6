// Find or go to: the pages, and the links on the page, whose name contains what was typed.
import { $, $$, el } from "./dom.js";

const MOST = 12;

function candidates() {
  const found = new Map();
  for (const link of $$("[data-go]")) found.set(link.href, [link.firstChild.textContent.trim(), "page"]);
  for (const link of $$("main a[href]")) {
    const text = link.textContent.trim();
    if (text && !link.closest("thead, .pages, svg") && !found.has(link.href)) found.set(link.href, [text, "on this page"]);
  }
  return found;
}

export function initFind() {
  const root = $("[data-find]");
  if (!root) return;
  const input = $("input", root), list = $(".find-results", root);
  let chosen = 0;

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark(index) {
    const options = $$("a", list);
    chosen = options.length ? (index + options.length) % options.length : 0;
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === chosen)));
    if (options.length) input.setAttribute("aria-activedescendant", options[chosen].id);
  }

  function show() {
    const wanted = input.value.trim().toLowerCase();
    const hits = [...candidates()].filter(([, [text]]) => text.toLowerCase().includes(wanted)).slice(0, MOST);
    list.replaceChildren(...hits.map(([href, [text, kind]], i) =>
      el("a", { href, id: `find-${i}`, role: "option", tabIndex: -1 }, text, el("span", {}, kind))));
    if (!hits.length) list.append(el("p", {}, `No page named “${input.value.trim()}”.`));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(0);
  }

  input.addEventListener("input", show);
  input.addEventListener("focus", show);
  input.addEventListener("blur", () => setTimeout(close, 150));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; input.blur(); }
    else if (event.key === "ArrowDown") mark(chosen + 1);
    else if (event.key === "ArrowUp") mark(chosen - 1);
    else if (event.key === "Enter") $$("a", list)[chosen]?.click();
    else return;
    event.preventDefault();
  });
}

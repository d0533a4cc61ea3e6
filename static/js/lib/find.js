// Find or go to: the site's search as a list under the field. Without a script the form opens the page of results.
import { $, $$, el } from "./dom.js";

const PAUSE_MS = 120; // after the last key
const GAP = 6; // between the field and its list, in pixels

export function initFind() {
  const form = $("[data-find]");
  if (!form) return;
  const input = $("input", form), list = $(".find-results", form);
  let chosen = 0, shown = null, asking = null, pause = 0, goes = false;

  const options = () => $$("a", list);

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function open() {
    // Fixed, under the field: the side bar scrolls and would cut it off.
    const field = input.getBoundingClientRect();
    list.style.left = `${field.left}px`;
    list.style.top = `${field.bottom + GAP}px`;
    list.style.maxHeight = `${Math.max(120, innerHeight - field.bottom - 2 * GAP)}px`;
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
  }

  function mark(index) {
    const all = options();
    if (!all.length) return;
    chosen = (index + all.length) % all.length;
    all.forEach((option, i) => option.setAttribute("aria-selected", String(i === chosen)));
    input.setAttribute("aria-activedescendant", all[chosen].id);
    all[chosen].scrollIntoView({ block: "nearest" });
  }

  function fill(...nodes) {
    list.replaceChildren(...nodes);
    options().forEach((option, i) => { option.id = `find-${i}`; });
    open();
    mark(0);
  }

  async function ask() {
    const q = input.value.trim();
    asking?.abort();
    const asked = asking = new AbortController();
    try {
      const answer = await fetch(`${form.action}?${new URLSearchParams({ q, part: 1 })}`, { signal: asked.signal });
      if (answer.redirected) { location.reload(); return; } // logged out meanwhile
      if (!answer.ok) throw new Error(String(answer.status));
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes;
      if (asked.signal.aborted) return;
      shown = q;
      fill(...found);
    } catch {
      if (asked.signal.aborted) return;
      shown = null;
      fill(el("p", {}, "The search does not answer. Press Enter to try again."));
    }
    if (goes) go();
  }

  function go() {
    goes = false;
    const option = options()[chosen];
    if (option) option.click();
  }

  function later() {
    goes = false;
    clearTimeout(pause);
    pause = setTimeout(ask, PAUSE_MS);
  }

  function enter() {
    clearTimeout(pause);
    // What is listed may be of an earlier text: wait for what was typed.
    if (shown === input.value.trim() && !list.hidden) go();
    else if (input.value.trim()) { goes = true; ask(); }
  }

  input.addEventListener("input", later);
  input.addEventListener("focus", () => { if (shown !== null && shown === input.value.trim()) open(); else ask(); });
  input.addEventListener("blur", () => { clearTimeout(pause); goes = false; setTimeout(close, 150); });
  form.addEventListener("submit", (event) => { event.preventDefault(); enter(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (input.value) { input.value = ""; later(); } else input.blur();
    } else if (event.key === "ArrowDown") mark(chosen + 1);
    else if (event.key === "ArrowUp") mark(chosen - 1);
    else return;
    event.preventDefault();
  });
  addEventListener("resize", () => { if (!list.hidden) open(); });
}

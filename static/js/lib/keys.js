// The keys of every page: / find, g then o p r s d n l, j k rows, Enter opens, ? help. They can be switched off.
import { $, $$, inField } from "./dom.js";
import { recall, remember } from "./storage.js";

const GO = { o: "overview", p: "plans", r: "runs", s: "schedules", d: "datacenters", n: "nodes", l: "links" };
const PAIR_MS = 1200;

export const singleKeysOn = () => recall("keys") !== "off";

function initHelp() {
  const dialog = $("#help");
  if (!dialog) return;
  const box = $("[data-single-keys]", dialog);
  box.checked = singleKeysOn();
  box.addEventListener("change", () => remember("keys", box.checked ? null : "off"));
  $("[data-help-open]")?.addEventListener("click", () => dialog.showModal());
  $("[data-close]", dialog).addEventListener("click", () => dialog.close());
}

function moveRow(step) {
  const rows = $$("table[data-rows] tbody tr").filter((row) => $("a[href]", row));
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.classList.contains("is-focused"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, now + step))];
  rows[now]?.classList.remove("is-focused");
  next.classList.add("is-focused");
  $("a[href]", next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

export function initKeys() {
  initHelp();
  let wentAt = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (inField(event.target) || $("dialog[open]") || !singleKeysOn()) return;
    const pair = performance.now() - wentAt < PAIR_MS && GO[event.key];
    wentAt = -Infinity;
    if (pair) $(`[data-go="${pair}"]`)?.click();
    else if (event.key === "g") wentAt = performance.now();
    else if (event.key === "/") $("[data-find] input")?.focus();
    else if (event.key === "?") $("#help")?.showModal();
    else if (event.key === "j") moveRow(1);
    else if (event.key === "k") moveRow(-1);
    else return;
    event.preventDefault();
  });
}

// The overview: cells that want arithmetic, written after every refresh, and whether the refreshes come.
import { $, $$, svg } from "./lib/dom.js";
import { fixed, span } from "./lib/format.js";

function paintCells() {
  const number = (node, name) => (node.dataset[name] === "" ? null : Number(node.dataset[name]));
  for (const cell of $$("[data-share]")) if (number(cell, "share") !== null) cell.firstChild.textContent = fixed(number(cell, "share") * 100, 1);
  for (const cell of $$("[data-off]")) {
    const share = number(cell, "off");
    if (share === null) continue;
    cell.textContent = (share > 0 ? "+" : "") + fixed(share * 100, 1);
    if (Math.abs(share) <= 0.05) continue;
    cell.classList.add("warn");
    cell.title = "More than 5 % off the prediction";
  }
  for (const cell of $$("[data-left]")) if (number(cell, "left") !== null) cell.textContent = span(number(cell, "left"));
  for (const node of $$("[data-history]")) {
    const values = node.dataset.history.split(" ").filter(Boolean).map(Number);
    if (values.length < 2) continue;
    const path = values.map((v, i) => `${i ? "L" : "M"}${((i / (values.length - 1)) * 130).toFixed(1)} ${(15 - v * 14).toFixed(1)}`).join("");
    node.replaceChildren(svg("path", { d: `${path}L130 16L0 16Z`, class: "under" }), svg("path", { d: path }));
  }
}

function badge(link, text) {
  const node = $("[data-badge]");
  if (!node) return;
  node.dataset.link = link;
  node.textContent = text;
}

document.body.addEventListener("htmx:afterSettle", paintCells);
document.body.addEventListener("htmx:afterOnLoad", () => badge("live", "Live"));
for (const name of ["htmx:sendError", "htmx:responseError"]) document.body.addEventListener(name, () => badge("offline", "Offline, asks again every 5 s"));
paintCells();

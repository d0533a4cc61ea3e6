// "Show as table": the same spans as rows of text, for whoever cannot see or use the canvas.
import { $, el } from "../lib/dom.js";
import { count, fixed } from "../lib/format.js";
import { titleOf } from "./describe.js";
import { laneName } from "./gutter.js";
import { drawn, loadItem, opItem, transferItem } from "./hit.js";
import { sentOn, shows } from "./links.js";

const MOST = 300;

/** All ops and transfers in the shown window, in order of start. */
export function itemsIn(scene) {
  const { from, to } = scene.view, items = [];
  scene.model.lanes.forEach((_, lane) => {
    for (const [block, shift, iteration] of drawn(scene, lane)) {
      if (block.last + shift < from || block.first + shift > to) continue;
      for (let i = 0; i < block.n; i++) {
        if (block.end[i] + shift >= from && block.start[i] + shift <= to) items.push(opItem(scene, lane, block, i, shift, iteration));
      }
      for (let i = 0; i < (block.loads?.n ?? 0); i++) {
        if (block.loads.end[i] + shift >= from && block.loads.start[i] + shift <= to) items.push(loadItem(scene, lane, block, i, shift, iteration));
      }
    }
  });
  for (const row of scene.layout.rows) if (row.kind === "link") items.push(...transfersOf(scene, row));
  return items.sort((x, y) => x.start - y.start);
}

function transfersOf(scene, row) {
  const { from, to } = scene.view, items = [];
  for (const { lane, block, shift, iteration } of sentOn(scene, row)) {
    for (let i = 0; i < block.n; i++) {
      if (block.end[i] + shift >= from && block.start[i] + shift <= to && shows(row, block, i)) items.push(transferItem(scene, lane, row.link, block, i, shift, iteration));
    }
  }
  return items;
}

export function fillTable(root, scene) {
  const items = itemsIn(scene), { unit } = scene.model;
  const head = ["What", "Where", ["Iteration", ""], ["Start", unit], ["Took", unit], ["Predicted", unit], ["Arrived", unit]];
  const row = (item) => el("tr", {},
    el("td", {}, titleOf(scene, item)), el("td", {}, whereOf(scene, item)), number(item.iteration + 1, 0), number(item.start - scene.zero, 1),
    number(item.end - item.start, 1), number(item.predicted ? item.predicted.end - item.predicted.start : null, 1),
    number(item.type === "transfer" ? item.arrives - scene.zero : null, 1));
  const table = el("table", {},
    el("caption", { className: "visually-hidden" }, "Ops and transfers in the shown window"),
    el("thead", {}, el("tr", {}, ...head.map((h) => (Array.isArray(h)
      ? el("th", { className: "num", scope: "col" }, h[0], h[1] ? el("span", { className: "unit" }, h[1]) : null) : el("th", { scope: "col" }, h))))),
    el("tbody", {}, ...items.slice(0, MOST).map(row)));
  const note = items.length > MOST ? `Showing ${count(MOST)} of ${count(items.length)}; zoom in for the rest.` : `${count(items.length)} ops and transfers.`;
  $("[data-note]", root)?.remove();
  root.replaceChildren(el("div", { className: "table-wrap", tabIndex: 0, role: "region", "aria-label": "Spans as a table" }, table), el("p", { className: "meta", dataset: { note: "" } }, note));
}

const number = (x, decimals) => el("td", { className: "num" }, x === null || !Number.isFinite(x) ? "–" : fixed(x, decimals));

function whereOf(scene, item) {
  const { model } = scene;
  if (item.type === "transfer") return `P${item.pipeline + 1}, ${model.dcs[item.from].name} → ${model.dcs[item.to].name}`;
  const lane = model.lanes[item.lane];
  return `${laneName(lane)}, ${model.dcs[lane.dc]?.name ?? ""}`;
}

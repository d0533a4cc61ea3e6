// The page of a placement: the least cost over evaluations, ours beside other searches; the figures are in the CSV.
import { $, jsonScript, roomIn, svg } from "./lib/dom.js";
import { count, fixed } from "./lib/format.js";
import { tickStep } from "./timeline/head.js";

const words = (x, y, text, anchor = "start", kind = "") => svg("text", { x, y, "text-anchor": anchor, class: kind }, text);

/** Steps: a cost holds until the next fall. */
function steps(points, last, x, y) {
  const corners = [];
  points.forEach(([at, cost], i) => {
    if (i) corners.push([x(at), y(points[i - 1][1])]);
    corners.push([x(at), y(cost)]);
  });
  corners.push([x(last), y(points.at(-1)[1])]);
  return corners.map((corner) => corner.map((n) => n.toFixed(1)).join(",")).join(" ");
}

function paint(root, { lines, levels, last }) {
  const wide = roomIn(root), high = 260, left = 52, foot = 26, right = wide < 560 ? 128 : 196;
  const costs = [...lines.flatMap((line) => line.points.map(([, cost]) => cost)), ...levels.map((level) => level.cost_s)];
  const most = Math.max(...costs) * 1.06 || 1, decades = Math.max(1, Math.log10(last));
  const x = (at) => left + (Math.log10(Math.max(1, at)) / decades) * (wide - left - right), y = (cost) => high - foot - (cost / most) * (high - foot - 8);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot", role: "img", "aria-label": "Least cost over evaluations; the table below has the end values, the file every improvement" });
  const step = tickStep(most / (high - foot), 44), decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let cost = 0; cost <= most; cost += step) plot.append(svg("line", { x1: left, x2: wide - right, y1: y(cost), y2: y(cost), class: cost ? "grid" : "axis" }), words(left - 6, y(cost) + 4, fixed(cost, decimals), "end"));
  for (let decade = 0; decade <= decades + 1e-9; decade++) plot.append(words(x(10 ** decade), high - 8, count(10 ** decade), "middle"));
  const names = [];
  for (const { name, cost_s } of levels) {
    plot.append(svg("line", { x1: left, x2: wide - right, y1: y(cost_s), y2: y(cost_s), class: "level" }));
    names.push({ name, at: y(cost_s) });
  }
  lines.forEach(({ name, points }, i) => {
    plot.append(svg("polyline", { class: `fall${i ? " odd" : ""}${i > 1 ? " d1" : ""}`, points: steps(points, last, x, y) }));
    names.push({ name: `${name} ${fixed(points.at(-1)[1], 2)} s`, at: y(points.at(-1)[1]) });
  });
  names.sort((a, b) => a.at - b.at);
  // Names that would hide each other move down, and all up again where that leaves the drawing.
  let lowest = -Infinity;
  for (const each of names) each.to = lowest = Math.max(lowest + 13, each.at + 4);
  const over = Math.max(0, lowest - (high - foot + 4));
  for (const { name, to } of names) plot.append(words(wide - right + 8, to - over, name, "start", "fall-name"));
  root.replaceChildren(plot);
}

function refresh() {
  const root = $("[data-history]"), chart = jsonScript("history");
  if (root && chart && !root.childElementCount) paint(root, chart);
}

document.addEventListener("htmx:afterSettle", refresh);
refresh();

// Charts of designs and replays: stacked parts of an iteration, one step of a swap plan; the numbers stand in the tables.
import { $, el, jsonScript, roomIn, svg } from "./lib/dom.js";
import { fixed } from "./lib/format.js";
import { followLayers } from "./lib/layer-fields.js";
import { followModel } from "./lib/model-fields.js";
import { tickStep } from "./timeline/head.js";

followModel();
followLayers();
const root = $("[data-charts]"), charts = jsonScript("charts");
const words = (x, y, text, anchor = "start") => svg("text", { x, y, "text-anchor": anchor }, text);

if (root && charts?.stacks) stacks(root, charts.stacks);
if (root && charts?.lines) for (const chart of [charts.lines].flat()) curves(root, chart);
if (root && charts?.gantt) gantt(root, charts.gantt);

function head(root, title) {
  root.append(el("div", { className: "section-head" }, el("h2", {}, title)));
}

/** Horizontal bars, each the sum of its parts. */
function stacks(root, { title, parts, bars }) {
  head(root, title);
  const wide = roomIn(root), left = 64, right = 56, row = 26, high = bars.length * row + 24;
  const totals = bars.map(({ values }) => values.reduce((a, b) => a + b, 0)), most = Math.max(...totals);
  const x = (value) => left + (value / most) * (wide - left - right);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot stack-bar", role: "img", "aria-label": `${title}; the table below holds the figures` });
  bars.forEach(({ label, values }, i) => {
    let at = 0;
    plot.append(words(left - 8, i * row + 16, label, "end"));
    values.forEach((value, part) => {
      if (value <= 0) return;
      const bar = svg("rect", { x: x(at), y: i * row + 4, width: x(at + value) - x(at), height: 16, class: `part-${part}` });
      bar.append(svg("title", {}, `${parts[part]} ${fixed(value, 3)}`));
      plot.append(bar);
      at += value;
    });
    plot.append(words(x(at) + 6, i * row + 16, fixed(totals[i], 2)));
  });
  axis(plot, x, most, high, wide);
  root.append(plot, el("ul", { className: "chart-key" }, ...parts.map((part, i) => el("li", {}, key(`part-${i}`), part))));
}

function key(kind, of = "") {
  const swatch = svg("svg", { width: 14, height: 10, "aria-hidden": "true", class: `stack-bar ${of}` });
  swatch.append(svg("rect", { width: 14, height: 10, class: kind }));
  return swatch;
}

function axis(plot, x, most, high, wide) {
  const step = tickStep(most / (wide - 120), 80);
  for (let t = 0; t <= most; t += step) plot.append(words(x(t), high - 4, fixed(t, step < 1 ? 2 : 0), "middle"));
}

/** One line per design over the values of one parameter; `measure` is the unit of what is drawn. */
function curves(root, { title, unit, lines, measure = "s" }) {
  head(root, title);
  const wide = roomIn(root), high = 240, left = 52, right = 76, foot = 40;
  const points = lines.flatMap((line) => line.points), values = [...new Set(points.map(([value]) => value))];
  const least = Math.min(...values), span = Math.max(...values) - least || 1, most = Math.max(...points.map(([, s]) => s)) * 1.06 || 1;
  const x = (value) => left + ((value - least) / span) * (wide - left - right), y = (s) => high - foot - (s / most) * (high - foot - 8);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot curves", role: "img", "aria-label": `${title}; the table below holds the figures` });
  const step = tickStep(most / (high - foot), 44), decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (let s = 0; s <= most; s += step) plot.append(svg("line", { x1: left, x2: wide - right, y1: y(s), y2: y(s), class: s ? "grid" : "axis" }), words(left - 6, y(s) + 4, fixed(s, decimals), "end"));
  let free = -Infinity;
  for (const value of [...values].sort((a, b) => a - b)) {
    if (x(value) < free) continue;
    plot.append(words(x(value), high - foot + 16, `${value}`, "middle"));
    free = x(value) + 48;
  }
  plot.append(words((left + wide - right) / 2, high - 6, unit, "middle"));
  const names = lines.map((line, i) => {
    plot.append(svg("polyline", { class: `curve curve-${i % 4}`, points: line.points.map(([value, s]) => `${x(value).toFixed(1)},${y(s).toFixed(1)}`).join(" ") }));
    for (const [value, s] of line.points) {
      const dot = svg("circle", { cx: x(value), cy: y(s), r: 3, class: `dot curve-${i % 4}` });
      dot.append(svg("title", {}, `${line.name}, ${value}: ${fixed(s, 3)} ${measure}`));
      plot.append(dot);
    }
    return { name: line.name, at: y(line.points.at(-1)[1]) };
  });
  names.sort((a, b) => a.at - b.at);
  let lowest = -Infinity;
  for (const { name, at } of names) plot.append(words(wide - right + 8, lowest = Math.max(lowest + 13, at + 4), name));
  root.append(plot);
}

/** What runs and what loads, row by row. */
function gantt(root, { title, length, rows, spans }) {
  head(root, title);
  const wide = roomIn(root), left = 64, right = 16, row = 26, high = rows.length * row + 24;
  const x = (value) => left + (value / length) * (wide - left - right);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot gantt stack-bar", role: "img", "aria-label": `${title}: computing and loading` });
  rows.forEach((name, i) => plot.append(words(left - 8, i * row + 16, name, "end")));
  for (const span of spans) {
    const bar = svg("rect", { x: x(span.start), y: span.row * row + 4, width: Math.max(0.5, x(span.end) - x(span.start)), height: 16, class: span.kind });
    bar.append(svg("title", {}, `${span.label}: ${fixed(span.start, 3)} to ${fixed(span.end, 3)} s`));
    plot.append(bar);
  }
  axis(plot, x, length, high, wide);
  const kinds = [["F", "Forward"], ["B", "Backward"], ["load", "Load"]].filter(([kind]) => spans.some((span) => span.kind === kind));
  root.append(plot, el("ul", { className: "chart-key" }, ...kinds.map(([kind, name]) => el("li", {}, key(kind, "gantt"), name))));
}

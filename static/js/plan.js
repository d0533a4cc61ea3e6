// The plan page: predicted timeline of the chosen option, its Pareto front, its stages over data centres.
import { $, el, jsonScript, svg } from "./lib/dom.js";
import { fixed } from "./lib/format.js";
import { bindControls } from "./timeline/controls.js";
import { tickStep } from "./timeline/head.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";
import { Totals } from "./timeline/totals.js";

const plan = jsonScript("plan"), section = $("[data-timeline-section]");

if (section) {
  const root = $("[data-timeline]", section);
  const timeline = new Timeline(root, { still: true, minimap: false, mode: "predicted" });
  bindControls(timeline, section);
  new Totals(timeline, section);
  paintLegend(section);
  if (plan?.timeline?.predicted?.spans?.length) timeline.load(plan.timeline);
  else {
    root.hidden = true;
    root.after(el("p", { className: "empty" }, "This option has too many ops to draw. Its figures stand in the table."));
  }
}
if ($("#pareto") && plan) paintPareto($("#pareto"));
if ($("#stages") && plan?.options[plan.selected]) paintStages($("#stages"));

function paintPareto(root) {
  const points = plan.options.map((option, index) => ({ ...option, index })).filter((o) => o.feasible && o.cost_per_iteration != null);
  if (!points.length) { root.append(el("p", { className: "meta" }, "No prices are known, so cost cannot stand against time.")); return; }
  const wide = 520, high = 230, left = 44, foot = 26, limits = plan.limits ?? {};
  const mostX = Math.max(...points.map((p) => p.iteration_ms)) * 1.12, mostY = (Math.max(...points.map((p) => p.cost_per_iteration)) || 1) * 1.18;
  const x = (ms) => left + (ms / mostX) * (wide - left - 12), y = (cost) => high - foot - (cost / mostY) * (high - foot - 10);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot", role: "group", "aria-label": "Cost per iteration against iteration time; the table above holds the figures" });
  if (limits.budget && limits.budget < mostY) plot.append(svg("rect", { x: left, y: y(mostY), width: wide - left - 12, height: y(limits.budget) - y(mostY), class: "forbidden" }));
  if (limits.deadline_ms && limits.deadline_ms < mostX) plot.append(svg("rect", { x: x(limits.deadline_ms), y: y(mostY), width: x(mostX) - x(limits.deadline_ms), height: y(0) - y(mostY), class: "forbidden" }));
  axes(plot, { x, y, mostX, mostY, wide, high, left, foot });
  if (limits.budget && limits.budget < mostY) plot.append(svg("line", { x1: left, x2: wide - 12, y1: y(limits.budget), y2: y(limits.budget), class: "limit" }), words(wide - 12, y(limits.budget) - 4, `cost limit $${limits.budget} an iteration`, "end"));
  if (limits.deadline_ms && limits.deadline_ms < mostX) plot.append(svg("line", { x1: x(limits.deadline_ms), x2: x(limits.deadline_ms), y1: y(mostY), y2: y(0), class: "limit" }), words(x(limits.deadline_ms) + 4, 20, `deadline ${fixed(limits.deadline_ms / 1000, 2)} s`));
  const front = new Set(plan.pareto ?? []), line = points.filter((p) => front.has(p.index)).sort((a, b) => a.iteration_ms - b.iteration_ms);
  if (line.length > 1) plot.append(svg("polyline", { class: "front", points: line.map((p) => `${x(p.iteration_ms)},${y(p.cost_per_iteration)}`).join(" ") }));
  for (const p of points) {
    const kind = p.index === plan.selected ? "chosen" : front.has(p.index) ? "on-front" : "";
    const label = words(x(p.iteration_ms) + 8, y(p.cost_per_iteration) - 6, String(p.dp_cells));
    plot.append(svg("a", { href: `?option=${p.index}`, "aria-label": `Option D = ${p.dp_cells}` }, svg("circle", { cx: x(p.iteration_ms), cy: y(p.cost_per_iteration), r: kind === "chosen" ? 5.5 : 3.6, class: `point ${kind}` }), ...(points.length < 20 || kind === "chosen" ? [label] : [])));
  }
  root.append(plot);
}

function words(x, y, text, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor }, text);
}

function axes(plot, { x, y, mostX, mostY, wide, high, left, foot }) {
  const stepX = tickStep(mostX / (wide - left), 80), seconds = mostX >= 10_000, stepY = tickStep(mostY / (high - foot), 38);
  const decimalsY = Math.max(0, -Math.floor(Math.log10(stepY) + 1e-9));
  for (let t = 0; t <= mostX; t += stepX) plot.append(words(x(t), high - 8, `${fixed(seconds ? t / 1000 : t, 0)}${t + stepX > mostX ? (seconds ? " s" : " ms") : ""}`, "middle"));
  for (let c = 0; c <= mostY; c += stepY) plot.append(svg("line", { x1: left, x2: wide - 12, y1: y(c), y2: y(c), class: c === 0 ? "axis" : "grid" }), words(left - 6, y(c) + 4, fixed(c, decimalsY), "end"));
}

function paintStages(root) {
  const option = plan.options[plan.selected], links = plan.timeline?.links ?? [], names = (plan.timeline?.dcs ?? []).map((dc) => dc.name);
  const inCell = option.pipelines / option.dp_cells, most = 12;
  const list = el("div", { className: "stages" });
  let stage = 0;
  option.partitions.forEach((part, i) => {
    const each = (option.gpus_used?.[part.dc] ?? part.stages * option.pipelines) / part.stages;
    const columns = el("div", { className: "columns-of" });
    const shown = Math.min(part.stages, 16);
    for (let s = 0; s < shown; s++) columns.append(el("div", {}, el("div", { className: "label" }, `S${stage + s + 1}`), squares(Math.round(each), inCell, most)));
    if (shown < part.stages) columns.append(el("div", { className: "label" }, `and ${part.stages - shown} more`));
    stage += part.stages;
    list.append(el("div", {}, el("h3", {}, part.dc, el("small", {}, `${fixed(Math.round(each) * part.stages, 0)} GPUs, ${part.stages} stages`)), columns));
    const next = option.partitions[i + 1];
    if (next) list.append(hop(links, names, part.dc, next.dc));
  });
  root.append(list);
}

function squares(gpus, inCell, most) {
  const perSquare = Math.max(1, Math.ceil(gpus / (inCell * most))), count = Math.ceil(gpus / perSquare), across = Math.max(1, Math.min(4, Math.round(inCell)));
  const rows = Math.ceil(count / across), drawing = svg("svg", { width: across * 10, height: rows * 10, "aria-hidden": "true" });
  for (let i = 0; i < count; i++) drawing.append(svg("rect", { x: (i % across) * 10, y: Math.floor(i / across) * 10, width: 7, height: 7, rx: 1, class: i % across % 2 ? "gpu odd" : "gpu" }));
  return perSquare > 1 ? el("div", {}, drawing, el("div", { className: "label" }, `${perSquare} a square`)) : drawing;
}

function hop(links, names, a, b) {
  const link = links.find((l) => [names[l.from], names[l.to]].includes(a) && [names[l.from], names[l.to]].includes(b));
  if (!link) return "";
  return el("div", { className: "hop" }, `${fixed(link.latency_ms, 0)} ms`, el("b"), `${fixed(link.cap_gbps, 1)} Gbit/s`);
}

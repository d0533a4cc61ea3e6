// Cost against time: options of a plan, the front, limits, and ghosts of what was before a change.
import { el, roomIn, svg } from "../lib/dom.js";
import { fixed } from "../lib/format.js";
import { tickStep } from "../timeline/head.js";

const HIGH = 230, LEFT = 44, FOOT = 26;
export const words = (x, y, text, anchor = "start") => svg("text", { x, y, "text-anchor": anchor }, text);
const priced = (options) => options.map((option, index) => ({ ...option, index })).filter((o) => o.feasible && o.cost_per_iteration != null);

export function paintPareto(root, plan) {
  const points = priced(plan.options), ghosts = priced(plan.before ?? []), limits = plan.limits ?? {};
  if (!points.length) { root.replaceChildren(el("p", { className: "meta" }, "No prices are known, so there is no chart of cost against time.")); return; }
  const { plot, x, y, lowX, mostX, mostY, wide } = frame(root, [...points, ...ghosts], "Cost per iteration against iteration time; the table above holds the figures", (area) => forbidden(area, limits));
  for (const ghost of ghosts) plot.append(svg("circle", { cx: x(ghost.iteration_ms), cy: y(ghost.cost_per_iteration), r: 3.6, class: "point ghost" }, svg("title", {}, `before: D = ${ghost.dp_cells}`)));
  const within = (limit, most) => limit != null && limit < most;
  if (within(limits.budget, mostY)) plot.append(svg("line", { x1: LEFT, x2: wide - 12, y1: y(limits.budget), y2: y(limits.budget), class: "limit" }), words(wide - 12, y(limits.budget) - 4, `cost limit $${limits.budget} per iteration`, "end"));
  if (within(limits.deadline_ms, mostX) && limits.deadline_ms > lowX) plot.append(svg("line", { x1: x(limits.deadline_ms), x2: x(limits.deadline_ms), y1: y(mostY), y2: y(0), class: "limit" }), words(x(limits.deadline_ms) + 4, 20, `deadline ${fixed(limits.deadline_ms / 1000, 2)} s`));
  const front = new Set(plan.pareto ?? []);
  frontLine(plot, points.filter((p) => front.has(p.index)), x, y, "front");
  for (const p of points) {
    const kind = p.index === plan.selected ? "chosen" : front.has(p.index) ? "on-front" : "";
    const label = words(x(p.iteration_ms) + 8, y(p.cost_per_iteration) - 6, String(p.dp_cells));
    const query = `?${plan.query ? `${plan.query}&` : ""}option=${p.index}`;
    plot.append(svg("a", { href: query, "aria-label": `Option D = ${p.dp_cells}: ${fixed(p.iteration_ms, 1)} ms, $${fixed(p.cost_per_iteration, 4)}` }, svg("circle", { cx: x(p.iteration_ms), cy: y(p.cost_per_iteration), r: kind === "chosen" ? 5.5 : 3.6, class: `point ${kind}` }), ...(points.length < 20 || kind === "chosen" ? [label] : [])));
  }
  root.replaceChildren(plot);
}

function forbidden({ plot, x, y, lowX, mostX, mostY, wide }, limits) {
  if (limits.budget != null && limits.budget < mostY) plot.append(svg("rect", { x: LEFT, y: y(mostY), width: wide - LEFT - 12, height: y(limits.budget) - y(mostY), class: "forbidden" }));
  if (limits.deadline_ms && limits.deadline_ms < mostX) plot.append(svg("rect", { x: x(Math.max(lowX, limits.deadline_ms)), y: y(mostY), width: x(mostX) - x(Math.max(lowX, limits.deadline_ms)), height: y(0) - y(mostY), class: "forbidden" }));
}

export function frontLine(plot, points, x, y, kind) {
  const line = [...points].sort((a, b) => a.iteration_ms - b.iteration_ms);
  if (line.length > 1) plot.append(svg("polyline", { class: kind, points: line.map((p) => `${x(p.iteration_ms)},${y(p.cost_per_iteration)}`).join(" ") }));
}

/** Axes that hold all `points`, as wide as `root`; `behind` draws what lies under them. */
export function frame(root, points, label, behind = () => {}) {
  const wide = roomIn(root);
  // Times of options lie near each other: the axis of time need not begin at 0, that of cost does.
  const times = points.map((p) => p.iteration_ms), span = Math.max(...times) - Math.min(...times) || Math.max(...times);
  const lowX = Math.max(0, Math.min(...times) - 0.2 * span), mostX = Math.max(...times) + 0.2 * span, mostY = (Math.max(...points.map((p) => p.cost_per_iteration)) || 1) * 1.18;
  const x = (ms) => LEFT + ((ms - lowX) / (mostX - lowX)) * (wide - LEFT - 12), y = (cost) => HIGH - FOOT - (cost / mostY) * (HIGH - FOOT - 10);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${HIGH}`, class: "plot", role: "group", "aria-label": label });
  const area = { plot, x, y, lowX, mostX, mostY, wide };
  behind(area);
  const stepX = tickStep((mostX - lowX) / (wide - LEFT), 80), seconds = mostX >= 10_000, stepY = tickStep(mostY / (HIGH - FOOT), 38);
  const decimalsY = Math.max(0, -Math.floor(Math.log10(stepY) + 1e-9));
  const decimalsX = seconds ? Math.max(0, -Math.floor(Math.log10(stepX / 1000) + 1e-9)) : stepX < 1 ? 1 : 0;
  for (let t = Math.ceil(lowX / stepX) * stepX; t <= mostX; t += stepX) {
    const last = t + stepX > mostX, unit = last ? (seconds ? " s" : " ms") : "";
    plot.append(words(Math.min(x(t), wide - (last ? 12 : 0)), HIGH - 8, fixed(seconds ? t / 1000 : t, decimalsX) + unit, last && x(t) > wide - 40 ? "end" : "middle"));
  }
  for (let c = 0; c <= mostY; c += stepY) plot.append(svg("line", { x1: LEFT, x2: wide - 12, y1: y(c), y2: y(c), class: c === 0 ? "axis" : "grid" }), words(LEFT - 6, y(c) + 4, fixed(c, decimalsY), "end"));
  return area;
}

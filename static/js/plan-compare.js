// Plans side by side: the options of each in one drawing; the figures are in the table and the files of the plans.
import { $, el, jsonScript, svg } from "./lib/dom.js";
import { fixed } from "./lib/format.js";
import { frame, frontLine, words } from "./plan/pareto.js";

const root = $("#fronts"), plans = jsonScript("compared") ?? [], points = plans.flatMap((plan) => plan.points);

function paint() {
  if (!points.length) { root.append(el("p", { className: "meta" }, "No plan has a feasible option with a known price.")); return; }
  const { plot, x, y, wide } = frame(root, points, "Cost per iteration against iteration time of every plan");
  plans.forEach((plan, i) => {
    const front = plan.points.filter((p) => p.on_front);
    frontLine(plot, front, x, y, `front d${i % 4}`);
    for (const p of plan.points) plot.append(svg("circle", { cx: x(p.iteration_ms), cy: y(p.cost_per_iteration), r: 3.4, class: `point${p.on_front ? " on-front" : ""}` }, svg("title", {}, `${plan.name}, D = ${p.dp_cells}: ${fixed(p.iteration_ms, 1)} ms, $${fixed(p.cost_per_iteration, 4)}`)));
    const last = front.sort((a, b) => b.cost_per_iteration - a.cost_per_iteration)[0] ?? plan.points[0];
    if (!last) return;
    // A name that has no room beside its point stands before it.
    const at = x(last.iteration_ms), ends = at > wide - 24 - 7 * plan.name.length;
    plot.append(words(at + (ends ? -8 : 8), y(last.cost_per_iteration) - 6, plan.name, ends ? "end" : "start"));
  });
  root.append(plot);
}

if (root) paint();

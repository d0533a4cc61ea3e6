// Stages of an option over its data centres: a square a GPU, the links between.
import { el, svg } from "../lib/dom.js";
import { fixed } from "../lib/format.js";

export function paintStages(root, plan) {
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
  root.replaceChildren(list);
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

// The page of a comparison: a timeline per policy on one axis, and the chart of a sweep.
import { $, el, jsonScript, svg } from "./lib/dom.js";
import { durationText, fixed } from "./lib/format.js";
import { bindControls } from "./timeline/controls.js";
import { tickStep } from "./timeline/head.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";
import { Totals } from "./timeline/totals.js";

const FILES = [["trace", "Perfetto trace"], ["spans", "CSV"], ["schedule", "Schedule as text"]];
// Offered where that runtime can run the order.
const RUNTIMES = { torch: "For torch.distributed.pipelining", megatron: "For Megatron-LM" };

/** Timelines that show one window: what is done to one is done to all. */
class Together {
  constructor(root) {
    this.root = root;
    this.list = $("[data-timeline-list]", root);
    this.timelines = new Map();
    this.asked = new Set();
    this.moving = false;
  }

  async show(policy, name) {
    if (this.asked.has(policy)) return;
    this.asked.add(policy);
    this.root.hidden = false;
    const section = $("[data-timeline-template]", this.root).content.firstElementChild.cloneNode(true);
    const base = this.root.dataset.base;
    $("h3", section).textContent = name;
    const offer = (files) => $(".files", section).append(...files.map(([form, label]) => el("a", { className: "link-button", href: `${base}${policy}/${form}/`, download: "" }, label)));
    offer(FILES);
    this.list.append(section);
    const answer = await fetch(`${base}${policy}/timeline.json`, { headers: { Accept: "application/json" } });
    const drawn = answer.ok ? await answer.json() : { failed: true };
    offer((drawn.runtimes ?? []).map((name) => [name, RUNTIMES[name]]));
    if (drawn.predicted) this.#add(policy, name, section, drawn);
    else this.#excuse(section, drawn);
  }

  #excuse(section, drawn) {
    $("[data-timeline]", section).replaceWith(el("p", { className: "empty" }, drawn.too_large
      ? `${fixed(drawn.too_large, 0)} spans are too many to draw here; the files above hold them all.` : "Its timeline could not be read. Load the page again."));
  }

  #add(policy, name, section, drawn) {
    $("[data-timeline-app]", section).setAttribute("aria-label", `${name}: timeline of one iteration. Arrow keys move from op to op, question mark lists all keys.`);
    const timeline = new Timeline($("[data-timeline]", section), { still: true, minimap: false, mode: "predicted" });
    $(".section-head .meta", section).textContent = `${durationText(drawn.predicted.iteration_ms, drawn.unit)}, ${fixed(100 * drawn.predicted.utilization, 1)} % busy`;
    this.timelines.set(policy, timeline);
    bindControls(timeline, section);
    new Totals(timeline, section);
    paintLegend(section);
    timeline.load(drawn);
    if (this.timelines.size === 1) bindControls(timeline, $(".section-head .tools", this.root));
    timeline.addEventListener("moved", () => this.#follow(timeline));
    this.#fit();
  }

  #fit() {
    const longest = Math.max(...[...this.timelines.values()].map((t) => t.model.predictedMs));
    for (const timeline of this.timelines.values()) {
      timeline.view.whole = longest;
      timeline.requestPaint();
    }
  }

  #follow(leader) {
    if (this.moving) return;
    this.moving = true;
    for (const timeline of this.timelines.values()) {
      if (timeline === leader) continue;
      if (timeline.by !== leader.by) timeline.setBy(leader.by);
      if (leader.view.live) timeline.resetZoom();
      else timeline.showRange(leader.view.from, leader.view.to);
    }
    this.moving = false;
  }
}

const root = $("[data-timelines]"), together = root ? new Together(root) : null;

function refresh() {
  if (together) for (const [policy, name] of Object.entries(jsonScript("drawable") ?? {})) together.show(policy, name);
  const chart = $("[data-sweep]"), points = jsonScript("sweep-points");
  if (chart && points && !chart.childElementCount) paintSweep(chart, points);
}

/** Makespan over the swept values, a line a policy, named at its end. */
function paintSweep(chart, { values, lines }) {
  const wide = 720, high = 300, left = 52, foot = 26, right = 200;
  const spans = lines.flatMap((line) => line.makespans).filter((m) => m !== null);
  if (!spans.length) { chart.append(el("p", { className: "meta" }, "No policy has a schedule here.")); return; }
  const most = Math.max(...spans) * 1.08, low = Math.min(...values), span = Math.max(...values) - low || 1;
  const x = (value) => left + ((value - low) / span) * (wide - left - right), y = (m) => high - foot - (m / most) * (high - foot - 8);
  const plot = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "plot", role: "img", "aria-label": "Makespan by value and policy; the table below holds the figures" });
  const step = tickStep(most / (high - foot), 44);
  for (let m = 0; m <= most; m += step) plot.append(svg("line", { x1: left, x2: wide - right, y1: y(m), y2: y(m), class: m ? "grid" : "axis" }), words(left - 6, y(m) + 4, fixed(m, step < 1 ? 2 : 0), "end"));
  for (const value of thin(values, 12)) plot.append(words(x(value), high - 8, String(value), "middle"));
  const ends = [];
  lines.forEach((line, i) => {
    const points = line.makespans.map((m, at) => (m === null ? null : [x(values[at]), y(m)])).filter(Boolean);
    if (!points.length) return;
    plot.append(svg("polyline", { class: `sweep-line d${Math.floor(i / 2) % 4}${i % 2 ? " odd" : ""}`, points: points.map((p) => p.join(",")).join(" ") }));
    points.forEach(([px, py]) => plot.append(svg("circle", { cx: px, cy: py, r: 2.4, class: "sweep-dot" })));
    ends.push({ name: line.name, at: points.at(-1) });
  });
  ends.sort((a, b) => a.at[1] - b.at[1]);
  let last = -Infinity;
  for (const { name, at } of ends) {
    last = Math.max(last + 13, at[1] + 4);
    plot.append(words(at[0] + 8, last, name));
  }
  chart.append(plot);
}

const words = (x, y, text, anchor = "start") => svg("text", { x, y, "text-anchor": anchor }, text);
const thin = (values, most) => values.filter((_, i) => i % Math.ceil(values.length / most) === 0);

document.addEventListener("htmx:afterSettle", refresh);
refresh();

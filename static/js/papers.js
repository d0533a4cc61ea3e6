// Plots of one paper's experiments, each drawn when it comes into view, with the axes that the paper has.
import { $$, el, jsonScript, svg } from "./lib/dom.js";
import { CONFIG, layout, line } from "./lib/plot.js";
import { readTokens } from "./lib/tokens.js";

const DASHES = ["solid", "5px,3px", "1.5px,3px", "8px,3px,1.5px,3px"];
const plots = jsonScript("plots") ?? {}, drawn = new Set();

/** Ink for lines of each pair, one slate step for each group of bars. */
const inkOf = (t, i, bars) => (bars ? [t.heat4, t.heat3, t.heat2, t.opA, t.ink3, t.heat1, t.ink2, t.ink][i % 8] : [t.ink, t.ink3][i % 2]);
const dashOf = (i) => DASHES[Math.floor(i / 2) % DASHES.length];
const plain = (text) => text.replace(/[<>&%{}]/g, " ");

function trace(t, series, i, plot) {
  const hover = `${plain(series.label)} %{x}: %{y:.4~g}<extra></extra>`;
  if (plot.kind === "bars") return { x: series.x, y: series.y, name: series.label, type: "bar", marker: { color: inkOf(t, i, true) }, hovertemplate: hover };
  return line(series.x, series.y, { ink: inkOf(t, i, false), dash: dashOf(i), name: series.label, hover });
}

function draw(root) {
  const plot = plots[root.dataset.plot];
  if (!window.Plotly || !plot) return;
  const t = readTokens(), title = (text) => ({ title: { text, font: { size: 11, color: t.ink3 }, standoff: 6 } });
  const shape = layout(t, { x: { tickformat: "~g", ...title(plot.x_label) }, y: { rangemode: "tozero", ...title(plot.y_label) }, height: 240 });
  drawn.add(root);
  window.Plotly.react(root, plot.series.map((series, i) => trace(t, series, i, plot)), { ...shape, margin: { l: 52, r: 12, t: 8, b: 40 }, hovermode: "closest", bargap: 0.25 }, { ...CONFIG });
  root.nextElementSibling.replaceChildren(...plot.series.map((series, i) => el("li", {}, swatch(t, i, plot.kind === "bars"), series.label)));
}

function swatch(t, i, bars) {
  const mark = bars ? svg("rect", { width: 14, height: 10, fill: inkOf(t, i, true) })
    : svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, stroke: inkOf(t, i, false), "stroke-width": 1.4, "stroke-dasharray": dashOf(i) === "solid" ? "none" : dashOf(i).replaceAll("px", "") });
  return svg("svg", { width: bars ? 14 : 18, height: 10, "aria-hidden": "true" }, mark);
}

function begin() {
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting || drawn.has(target)) continue;
      seen.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "200px" });
  for (const root of $$("[data-plot]")) seen.observe(root);
}

document.addEventListener("meridian:theme", () => drawn.forEach(draw));
window.addEventListener("load", begin, { once: true });

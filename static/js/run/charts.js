// Loss by iteration and link throughput over time, by plotly with the site's tokens.
import { readTokens } from "../lib/tokens.js";

const CONFIG = { displaylogo: false, showSendToCloud: false, responsive: true, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const REFRESH_MS = 1_000, KEEP = 1_200;

// Plotly changes the layout that it is given: a new one every time.
function layout(t, { yZero, notes = [], lines = [], xTitle, right = 12 }) {
  const axis = { gridcolor: t.grid, linecolor: t.rule2, zeroline: false, tickfont: { color: t.ink3, size: 11 }, nticks: 6, automargin: true, fixedrange: false };
  return {
    height: 190, margin: { l: 34, r: right, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x",
    font: { family: t.family, size: 11, color: t.ink3 }, hoverlabel: { bgcolor: t.bg, bordercolor: t.rule2, font: { color: t.ink, size: 12 } },
    xaxis: { ...axis, showgrid: false, ticksuffix: xTitle ?? "" }, yaxis: { ...axis, ...(yZero ? { rangemode: "tozero" } : {}) }, annotations: notes, shapes: lines, uirevision: "keep",
  };
}

const note = (t, x, y, text, rest = {}) => ({ x, y, text, showarrow: false, xanchor: "right", yanchor: "bottom", font: { color: t.ink2, size: 11 }, ...rest });

export class Charts {
  constructor({ loss, links, model }) {
    Object.assign(this, { loss, links, model });
    this.throughput = [];
    this.drawnAt = 0;
    document.addEventListener("meridian:theme", () => this.draw());
  }

  /** Keeps a point per direction of each link whenever the server tells its usage anew. */
  record(usage, now) {
    if (!usage?.links?.length) return;
    const t = now / 1000;
    if (this.throughput.length && t <= this.throughput.at(-1).t) return;
    this.throughput.push({ t, links: usage.links });
    if (this.throughput.length > KEEP) this.throughput.shift();
  }

  draw(force = true) {
    if (!window.Plotly || (!force && Date.now() - this.drawnAt < REFRESH_MS)) return;
    this.drawnAt = Date.now();
    const t = readTokens();
    this.#loss(t);
    this.#links(t);
  }

  #loss(t) {
    const points = this.model.iterations.filter((it) => it.loss != null), last = points.at(-1);
    this.loss.parentElement.querySelector("[data-none]").hidden = points.length > 0;
    this.loss.hidden = !points.length;
    if (!last) return;
    const trace = { x: points.map((it) => it.iteration + 1), y: points.map((it) => it.loss), type: "scatter", mode: points.length < 2 ? "markers" : "lines", line: { color: t.ink, width: 1.4 }, marker: { color: t.ink }, hovertemplate: "%{y:.3f} at %{x:,}<extra></extra>" };
    const label = note(t, 1, 1, `training ${last.loss.toFixed(3)}`, { xref: "paper", yref: "paper", yanchor: "top", bgcolor: t.bg });
    window.Plotly.react(this.loss, [trace], layout(t, { notes: [label] }), { ...CONFIG });
  }

  #links(t) {
    const rows = this.throughput, last = rows.at(-1);
    this.links.parentElement.querySelector("[data-none]").hidden = Boolean(last);
    this.links.hidden = !last;
    if (!last) return;
    const inks = [t.ink, t.ink3], name = (link) => `${this.model.dcs[link.from]?.name} → ${this.model.dcs[link.to]?.name}`;
    const traces = last.links.map((link, i) => ({
      x: rows.map((row) => row.t), y: rows.map((row) => row.links.find((l) => l.from === link.from && l.to === link.to)?.gbps ?? null), name: name(link), type: "scatter",
      mode: rows.length < 2 ? "markers" : "lines", line: { color: inks[i % 2], width: 1.4, dash: i > 1 ? "dot" : "solid" }, marker: { color: inks[i % 2] }, hovertemplate: `${name(link)} %{y:.2f}<extra></extra>`,
    }));
    const caps = [...new Set(last.links.map((link) => link.cap_gbps))].filter(Number.isFinite), most = Math.max(...caps, 0);
    const lines = caps.map((cap) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: cap, y1: cap, line: { color: t.ink3, width: 1, dash: "3px,3px" } }));
    const notes = caps.map((cap) => note(t, 1, cap, `cap ${cap.toFixed(2)}`, { xref: "paper" }));
    last.links.forEach((link, i) => notes.push(note(t, 1, 0, `${name(link)} ${link.gbps == null ? "–" : link.gbps.toFixed(2)}`, { xref: "paper", yref: "paper", yshift: 4 + 14 * (last.links.length - 1 - i) })));
    const made = layout(t, { yZero: true, notes, lines, xTitle: " s" });
    if (most) made.yaxis.range = [0, most * 1.15];
    window.Plotly.react(this.links, traces, made, { ...CONFIG });
  }
}

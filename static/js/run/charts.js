// Loss by iteration, link throughput and utilization over the whole run, by plotly with the site's tokens.
import { LEVEL } from "../lib/wire.js";
import { el, svg } from "../lib/dom.js";
import { CONFIG } from "../lib/plot.js";
import { timeElement } from "../lib/times.js";
import { readTokens } from "../lib/tokens.js";
import { thinned } from "./history.js";

// Plotly changes the layout that it is given: a new one every time.
function layout(t, { yZero, notes = [], lines = [], xTitle, right = 12, height = 190 }) {
  const axis = { gridcolor: t.grid, linecolor: t.rule2, zeroline: false, tickfont: { color: t.ink3, size: 11 }, nticks: 6, automargin: true, fixedrange: false };
  return {
    height, margin: { l: 34, r: right, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x",
    font: { family: t.family, size: 11, color: t.ink3 }, hoverlabel: { bgcolor: t.bg, bordercolor: t.rule2, font: { color: t.ink, size: 12 } },
    xaxis: { ...axis, showgrid: false, ticksuffix: xTitle ?? "" }, yaxis: { ...axis, ...(yZero ? { rangemode: "tozero" } : {}) }, annotations: notes, shapes: lines, uirevision: "keep",
  };
}

const note = (t, x, y, text, rest = {}) => ({ x, y, text, showarrow: false, xanchor: "right", yanchor: "bottom", font: { color: t.ink2, size: 11 }, ...rest });
const inBits = (loss, bits) => (bits == null ? loss.toFixed(3) : `${loss.toFixed(3)} (${bits.toFixed(3)} bits/byte)`);
const DASHES = ["solid", "solid", "dot", "dot", "dash", "dash"];

function series(t, i, { x, y }, name, unit, decimals) {
  const ink = [t.ink, t.ink3][i % 2];
  return {
    x, y, name, type: "scatter", mode: x.length < 2 ? "markers" : "lines", line: { color: ink, width: 1.4, dash: DASHES[i % DASHES.length] }, marker: { color: ink },
    hovertemplate: `${name} %{y:.${decimals}f}${unit}<extra></extra>`,
  };
}

export class Charts {
  constructor({ loss, links, utilization, faults, model, history }) {
    Object.assign(this, { loss, links, utilization, faultNote: faults, model, history });
    document.addEventListener("meridian:theme", () => this.draw());
    history.addEventListener("read", () => this.draw());
  }

  draw() {
    if (!window.Plotly) return;
    const t = readTokens();
    this.#loss(t);
    this.#links(t);
    this.#utilization(t);
    this.#faults();
  }

  #show(root, any) {
    root.parentElement.querySelector("[data-none]").hidden = any;
    root.hidden = !any;
    return any;
  }

  // What is drawn already is not drawn again: a chart costs more than all else on the page.
  #plot(root, traces, made, key) {
    if (root.drawn === key) return;
    root.drawn = key;
    window.Plotly.react(root, traces, made, { ...CONFIG });
  }

  /** All losses: those of the server's history, and those that came after. */
  #losses() {
    const old = this.history.iterations.filter((it) => it.loss !== null), last = old.at(-1)?.iteration ?? -1;
    return [...old, ...this.model.iterations.filter((it) => it.loss != null && it.iteration > last)];
  }

  #loss(t) {
    const points = this.#losses(), last = points.at(-1);
    if (!this.#show(this.loss, points.length > 0)) return;
    const trace = { x: points.map((it) => it.iteration + 1), y: points.map((it) => it.loss), type: "scatter", mode: points.length < 2 ? "markers" : "lines", line: { color: t.ink, width: 1.4 }, marker: { color: t.ink }, hovertemplate: "%{y:.3f} at %{x:,}<extra></extra>" };
    const held = points.filter((it) => it.validation_loss != null), checked = held.at(-1);
    const validation = { ...trace, x: held.map((it) => it.iteration + 1), y: held.map((it) => it.validation_loss), mode: "lines+markers", line: { color: t.ink3, width: 1.4 }, marker: { color: t.ink3, size: 4 }, hovertemplate: "validation %{y:.3f} at %{x:,}<extra></extra>" };
    const training = `training ${inBits(last.loss, last.bits_per_byte)}`;
    const words = checked ? `${training}<br>grey: validation ${inBits(checked.validation_loss, checked.validation_bits_per_byte)}` : training;
    const label = note(t, 1, 1, words, { xref: "paper", yref: "paper", yanchor: "top", align: "right", bgcolor: t.bg });
    this.#plot(this.loss, checked ? [trace, validation] : [trace], layout(t, { notes: [label] }), `${t.bg} ${points.length} ${last.iteration} ${last.loss} ${held.length}`);
  }

  #name(link) { return `${this.model.dcs[link.from]?.name} → ${this.model.dcs[link.to]?.name}`; }

  #links(t) {
    const { links } = this.model, lines = links.map((link) => thinned(this.history.throughput(link.from, link.to), 80)), now = lines.map((line) => line.y.findLast((y) => y !== null) ?? null);
    if (!this.#show(this.links, now.some((gbps) => gbps !== null))) { this.links.nextElementSibling.replaceChildren(); return; }
    const traces = links.map((link, i) => series(t, i, lines[i], this.#name(link), " Gbit/s", 2));
    const caps = [...new Set(links.map((link) => link.cap_gbps))].filter(Number.isFinite), most = Math.max(...caps, 0);
    const shapes = [...caps.map((cap) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: cap, y1: cap, line: { color: t.ink3, width: 1, dash: "3px,3px" } })), ...this.#faultLines(t)];
    const notes = caps.map((cap) => note(t, 1, cap, `cap ${cap.toFixed(2)}`, { xref: "paper" }));
    this.#legend(links, now);
    const made = layout(t, { yZero: true, notes, lines: shapes, xTitle: " s" });
    if (most) made.yaxis.range = [0, most * 1.15];
    this.#plot(this.links, traces, made, `${t.bg} ${lines[0].x.length} ${lines[0].x.at(-1)} ${this.model.marks.length}`);
  }

  // Names under the lines, each with its stroke: inside they would hide what they name.
  #legend(links, now) {
    const items = links.map((link, i) => {
      const stroke = svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, class: `stroke-${i % 2} dash-${DASHES[i % DASHES.length]}` });
      return el("li", {}, svg("svg", { width: 18, height: 8, "aria-hidden": "true" }, stroke), `${this.#name(link)} ${now[i] === null ? "–" : now[i].toFixed(2)}`);
    });
    this.links.nextElementSibling.replaceChildren(...items);
  }

  #utilization(t) {
    const { model, history } = this, run = thinned(history.utilization(null), 240);
    if (!this.#show(this.utilization, run.y.some((y) => y !== null))) return;
    const used = model.dcs.map((dc, i) => i).filter((i) => model.lanes.some((lane) => lane.dc === i));
    const lines = used.length > 1 && used.length < 6 ? used.map((i) => [model.dcs[i].name, thinned(history.utilization(i), 240)]) : [];
    const traces = [["run", run], ...lines].map(([name, line], i) => ({ ...series(t, i, line, name, " %", 1), line: { color: i ? t.ink3 : t.ink, width: i ? 1.2 : 1.6, dash: i ? ["dot", "dash", "dashdot", "longdash", "longdashdot"][i - 1] : "solid" } }));
    const notes = [], shapes = this.#faultLines(t), predicted = model.predictedUtilization === null ? null : model.predictedUtilization * 100;
    if (predicted !== null) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: predicted, y1: predicted, line: { color: t.ink3, width: 1, dash: "3px,3px" } });
      notes.push(note(t, 1, predicted, `predicted ${predicted.toFixed(1)} %`, { xref: "paper", bgcolor: t.bg }));
    }
    const words = [["run", run], ...(this.utilization.parentElement.clientWidth < 520 ? [] : lines)].map(([name, line]) => `${name} ${(line.y.findLast((y) => y !== null) ?? 0).toFixed(1)} %`).join(", ");
    notes.push(note(t, 1, 0, words, { xref: "paper", yref: "paper", yshift: 4, bgcolor: t.bg }));
    const made = layout(t, { yZero: true, notes, lines: shapes, xTitle: " s", height: 150 });
    const most = Math.max(10, predicted ?? 0, ...traces.flatMap((trace) => trace.y.filter((y) => y !== null)));
    made.yaxis.range = [0, Math.min(100, most * 1.25)];
    made.yaxis.ticksuffix = " %";
    made.yaxis.nticks = 5;
    this.#plot(this.utilization, traces, made, `${t.bg} ${run.x.length} ${run.x.at(-1)} ${model.marks.length}`);
  }

  #faultLines(t) {
    return this.model.marks.filter((mark) => mark.level === LEVEL.ERROR).slice(-50).map((mark) => ({ type: "line", yref: "paper", x0: mark.time / 1_000, x1: mark.time / 1_000, y0: 0, y1: 1, line: { color: t.err, width: 1 } }));
  }

  // One sentence under the chart: the last fault.
  #faults() {
    const fault = this.model.marks.findLast((mark) => mark.level === LEVEL.ERROR);
    this.faultNote.hidden = !fault;
    if (fault) this.faultNote.replaceChildren(el("span", { className: "err" }, timeElement(fault.t, "recent")), ` ${fault.text}`);
  }
}

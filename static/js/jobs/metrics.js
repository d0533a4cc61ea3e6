// The metrics page: four charts of the whole run from history.json, again every few seconds while it runs.
import { $, $$, el, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { readTokens } from "../lib/tokens.js";

const CONFIG = { displaylogo: false, showSendToCloud: false, responsive: true, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const FORMATS = { loss: ".3f", grad_norm: ".3f", learning_rate: ".2e", tokens_per_s: ",.0f" };
const WRITE = { loss: (x) => x.toFixed(3), grad_norm: (x) => x.toFixed(3), learning_rate: (x) => x.toExponential(2), tokens_per_s: (x) => count(Math.round(x)) };
const AGAIN_MS = 5_000;
const page = $("[data-metrics]");
let points = [];

function layout(t, name) {
  const axis = { gridcolor: t.grid, linecolor: t.rule2, zeroline: false, tickfont: { color: t.ink3, size: 11 }, nticks: 6, automargin: true };
  return {
    margin: { l: 44, r: 12, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "x", height: 220,
    font: { family: t.family, size: 11, color: t.ink3 }, hoverlabel: { bgcolor: t.bg, bordercolor: t.rule2, font: { color: t.ink, size: 12 } },
    xaxis: { ...axis, showgrid: false, tickformat: ",d" }, yaxis: { ...axis, ...(name === "loss" ? {} : { rangemode: "tozero" }), ...(name === "learning_rate" ? { exponentformat: "e" } : {}) }, uirevision: "keep",
  };
}

function draw() {
  if (!window.Plotly) return;
  const t = readTokens();
  for (const root of $$("[data-chart]")) {
    const name = root.dataset.chart, known = points.filter((p) => p[name] !== null);
    if (!known.length) continue;
    if (!root.classList.contains("js-plotly-plot")) root.replaceChildren();
    const trace = { x: known.map((p) => p.iteration + 1), y: known.map((p) => p[name]), type: "scatter", mode: known.length < 2 ? "markers" : "lines", line: { color: t.ink, width: 1.4 }, marker: { color: t.ink }, hovertemplate: `%{y:${FORMATS[name]}} at %{x:,}<extra></extra>` };
    const last = known.at(-1), label = { x: 1, y: 1, xref: "paper", yref: "paper", xanchor: "right", yanchor: "top", showarrow: false, bgcolor: t.bg, font: { color: t.ink2, size: 11 }, text: `${WRITE[name](last[name])} at ${count(last.iteration + 1)}` };
    window.Plotly.react(root, [trace], { ...layout(t, name), annotations: [label] }, { ...CONFIG });
  }
}

function problem(text) {
  let line = $("[data-problem]");
  if (!line) page.after(line = el("p", { className: "problem", role: "alert", dataset: { problem: "" } }));
  setText(line, text);
  line.hidden = !text;
}

async function read() {
  try {
    const answer = await fetch(page.dataset.historyUrl, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const history = await answer.json();
    points = history.iterations;
    setText($("[data-thinned]"), history.every > 1 ? `a point is the mean of ${count(history.every)} iterations` : "");
    problem("");
    draw();
  } catch (error) {
    problem(`The charts cannot be brought up to date (${error.message}). Tried again in ${AGAIN_MS / 1_000} s.`);
  }
  if ("open" in page.dataset || !$("[data-problem]")?.hidden) setTimeout(read, AGAIN_MS);
}

document.addEventListener("meridian:theme", draw);
window.addEventListener("load", read, { once: true });

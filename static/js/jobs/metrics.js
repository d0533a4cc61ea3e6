// The metrics page: charts of the whole run from history.json, again every few seconds while it runs.
import { $, $$, el, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { CONFIG, layout, line } from "../lib/plot.js";
import { readTokens } from "../lib/tokens.js";

const FORMATS = { loss: ".3f", bits_per_byte: ".3f", grad_norm: ".3f", learning_rate: ".2e", tokens_per_s: ",.0f" };
const WRITE = { loss: (x) => x.toFixed(3), bits_per_byte: (x) => x.toFixed(3), grad_norm: (x) => x.toFixed(3), learning_rate: (x) => x.toExponential(2), tokens_per_s: (x) => count(Math.round(x)) };
const AGAIN_MS = 5_000;
const page = $("[data-metrics]");
let points = [];

const Y_AXIS = { loss: {}, bits_per_byte: {}, learning_rate: { rangemode: "tozero", exponentformat: "e" } };

function draw() {
  if (!window.Plotly) return;
  const t = readTokens();
  for (const root of $$("[data-chart]")) {
    const name = root.dataset.chart, known = points.filter((p) => p[name] !== null);
    if (!known.length) continue;
    if (!root.classList.contains("js-plotly-plot")) root.replaceChildren();
    const trace = line(known.map((p) => p.iteration + 1), known.map((p) => p[name]), { ink: t.ink, hover: `%{y:${FORMATS[name]}} at %{x:,}<extra></extra>` });
    const last = known.at(-1), label = { x: 1, y: 1, xref: "paper", yref: "paper", xanchor: "right", yanchor: "top", showarrow: false, bgcolor: t.bg, font: { color: t.ink2, size: 11 }, text: `${WRITE[name](last[name])} at ${count(last.iteration + 1)}` };
    window.Plotly.react(root, [trace], { ...layout(t, { y: Y_AXIS[name] ?? { rangemode: "tozero" } }), annotations: [label] }, { ...CONFIG });
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

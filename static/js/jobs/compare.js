// The page that compares runs: their losses in one chart, by iteration or by tokens, again while one trains.
import { $, $$, el, jsonScript, setText, svg } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { CONFIG, layout, line } from "../lib/plot.js";
import { readTokens } from "../lib/tokens.js";

const AGAIN_MS = 5_000;
const DASHES = ["solid", "dash"];
const root = $("#compared-loss"), runs = jsonScript("compared");
let axis = "iteration", histories = [];

/** Loss of a run by what the axis counts. A resumed run goes on where the one before it ended: both count from the first iteration. */
function points(run, history) {
  const known = history.iterations.filter((it) => it.loss !== null), per = axis === "tokens" ? run.tokens : 1;
  return [known.map((it) => (it.iteration + 1) * per), known.map((it) => it.loss)];
}

function draw() {
  const any = histories.some((history) => history.iterations.some((it) => it.loss !== null));
  if (!window.Plotly || !any) return;
  const t = readTokens(), inks = [t.ink, t.ink3];
  if (!root.classList.contains("js-plotly-plot")) root.replaceChildren();
  const traces = runs.map((run, i) => line(...points(run, histories[i]), { name: run.name, ink: inks[i], dash: DASHES[i], hover: `${run.name.replace(/[<>&%{}]/g, " ")} %{y:.3f}<extra></extra>` }));
  window.Plotly.react(root, traces, { ...layout(t, { x: axis === "tokens" ? { tickformat: "~s" } : {}, height: 280 }), uirevision: axis }, { ...CONFIG });
  legend();
}

function legend() {
  const items = runs.map((run, i) => {
    const last = histories[i].iterations.findLast((it) => it.loss !== null);
    const stroke = svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, class: `stroke-${i} dash-${DASHES[i]}` });
    return el("li", {}, svg("svg", { width: 18, height: 8, "aria-hidden": "true" }, stroke), last ? `${run.name}: ${last.loss.toFixed(3)} at ${count(last.iteration + 1)}` : `${run.name}: no loss yet`);
  });
  root.nextElementSibling.replaceChildren(...items);
}

async function historyOf(run) {
  const answer = await fetch(run.history, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return answer.json();
}

async function read() {
  let again = runs.some((run) => run.open);
  try {
    histories = await Promise.all(runs.map(historyOf));
    const every = Math.max(...histories.map((history) => history.every));
    setText($("[data-thinned]"), every > 1 ? `a point is the mean of up to ${count(every)} iterations` : "");
    draw();
  } catch (error) {
    again = true;
    setText($("[data-thinned]"), `The chart cannot be brought up to date (${error.message}). Tried again in ${AGAIN_MS / 1_000} s.`);
  }
  if (again) setTimeout(read, AGAIN_MS);
}

for (const button of $$("[data-axis]")) {
  button.addEventListener("click", () => {
    axis = button.dataset.axis;
    for (const other of $$("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
}
document.addEventListener("meridian:theme", draw);
window.addEventListener("load", read, { once: true });

// How much of the shown range was bubbles: for the run, each data centre and each GPU.
import { $, el, setText } from "../lib/dom.js";
import { count, durationText, fixed, instant, percent, span } from "../lib/format.js";
import { bubblesIn } from "./gaps.js";
import { laneName } from "./gutter.js";

const AFTER_MS = 250, MOST_GPUS = 64;

/**
 * @returns {{from, to, lanes: Array, dcs: Array, run: object} | null} per entry {count, ms, longest, known}, ms; null where
 *   nothing began in the shown range
 */
export function totalsOf(scene) {
  const { model, view, anchors } = scene, predicted = scene.mode === "predicted", last = anchors.at(-1);
  const from = Math.max(view.from, anchors[0]?.start ?? view.from), to = Math.min(view.to, predicted ? (last?.start ?? 0) + model.predictionAt(last?.iteration ?? 0).ms : model.frontier);
  if (!(to > from)) return null;
  const empty = () => ({ count: 0, ms: 0, longest: 0, known: 0 });
  const totals = { from, to, lanes: [], dcs: model.dcs.map(empty), run: empty() };
  model.lanes.forEach((lane, i) => {
    const own = bubblesIn(scene, i, from, to);
    totals.lanes.push(own);
    for (const sum of [totals.dcs[lane.dc], totals.run]) if (sum) add(sum, own);
  });
  return totals;
}

function add(sum, own) {
  sum.count += own.count;
  sum.ms += own.ms;
  sum.known += own.known;
  sum.longest = Math.max(sum.longest, own.longest);
}

function sentence(scene, { from, to, run }) {
  const { unit } = scene.model, gpus = scene.model.lanes.length, what = scene.mode === "predicted" && !scene.model.measured ? "Predicted bubbles" : "Bubbles";
  const of = scene.shown === null || scene.end !== null ? "" : ` of iteration ${count(scene.shown + 1)}`;
  return `${what} from ${instant(from - scene.zero, unit)} to ${instant(to - scene.zero, unit)}${of}: ${count(run.count)} on ${count(gpus)} GPU${gpus === 1 ? "" : "s"}, ${
    amount(run.ms, unit)} idle in all, ${percent(share(run))} of GPU time, the longest ${instant(run.longest, unit)}.`;
}

// GPU time adds up to hours on many GPUs.
const amount = (ms, unit) => (ms < 60_000 || unit !== "ms" ? durationText(ms, unit) : span(ms / 1_000));
const share = (entry) => (entry.known > 0 ? entry.ms / entry.known : null);

/** Keeps the line of totals and its table true to what the timeline shows. */
export class Totals {
  constructor(timeline, section) {
    Object.assign(this, { timeline, root: $("[data-totals]", section), line: $("[data-totals-line]", section), table: $("[data-totals-table]", section), button: $("[data-totals-open]", section) });
    this.button.addEventListener("click", () => {
      this.table.hidden = !this.table.hidden;
      this.button.setAttribute("aria-expanded", String(!this.table.hidden));
      setText(this.button, this.table.hidden ? "Per GPU" : "Hide");
      this.show();
    });
    timeline.addEventListener("painted", () => { this.timer ??= setTimeout(() => { this.timer = null; this.show(); }, AFTER_MS); });
  }

  show() {
    const scene = this.timeline.frame, totals = scene ? totalsOf(scene) : null;
    this.timeline.totals = totals;
    // Before the first iteration nothing was measured: there is nothing that could have been forgotten.
    this.root.hidden = !totals || (!totals.run.known && !scene.model.iterations.length);
    if (this.root.hidden) return;
    setText(this.line, totals.run.known ? sentence(scene, totals) : "The spans of this range are no longer kept; the charts below show the whole run.");
    this.button.hidden = !totals.run.known;
    if (!this.table.hidden) this.#fill(scene, totals);
  }

  #fill(scene, totals) {
    const { model } = scene, rows = [["Run", "", totals.run, "total"]];
    const worst = totals.lanes.map((own, lane) => ({ own, lane })).sort((x, y) => y.own.ms - x.own.ms).slice(0, MOST_GPUS);
    const kept = new Set(worst.map(({ lane }) => lane));
    model.dcs.forEach((dc, i) => {
      if (!model.lanes.some((lane) => lane.dc === i)) return;
      rows.push([dc.name, "", totals.dcs[i], "total"]);
      model.lanes.forEach((lane, l) => { if (lane.dc === i && kept.has(l)) rows.push([laneName(lane), lane.node ? `${lane.node} gpu-${lane.gpu}` : "", totals.lanes[l], ""]); });
    });
    const head = ["Where", "GPU", ["Bubbles", ""], ["In all", model.unit], ["Share", "%"], ["Longest", model.unit]];
    const body = rows.map(([name, gpu, own, kind]) => el("tr", { className: kind },
      el("th", { scope: "row" }, name), el("td", {}, gpu), number(own.count, 0), number(own.ms, 1), number(share(own) === null ? null : share(own) * 100, 1), number(own.longest, 1)));
    const note = model.lanes.length > MOST_GPUS ? [el("p", { className: "meta" }, `Showing the ${MOST_GPUS} GPUs of ${count(model.lanes.length)} that were idle longest.`)] : [];
    this.table.replaceChildren(el("div", { className: "table-wrap" }, el("table", {},
      el("caption", { className: "visually-hidden" }, "Bubbles in the shown range"),
      el("thead", {}, el("tr", {}, ...head.map((h) => (Array.isArray(h) ? el("th", { className: "num", scope: "col" }, h[0], h[1] ? el("span", { className: "unit" }, h[1]) : null) : el("th", { scope: "col" }, h))))),
      el("tbody", {}, ...body))), ...note);
  }
}

const number = (x, decimals) => el("td", { className: "num" }, x === null ? "–" : fixed(x, decimals));

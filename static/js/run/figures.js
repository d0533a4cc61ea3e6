// The six key figures of a run, each with its reference.
import { $, setText, svg } from "../lib/dom.js";
import { count, difference, duration, durationText, fixed, percent } from "../lib/format.js";

import { isWhole } from "../timeline/model.js";

const SPARK_POINTS = 120;

function put(name, value, unit, ref) {
  const root = $(`[data-figure="${name}"]`);
  setText($("[data-value]", root), value);
  setText($("[data-unit]", root), unit);
  setText($("[data-ref]", root), ref);
  return $(".spark, .bar", root);
}

/** A line of 18 px; `reference` is drawn dashed. */
function spark(root, values, reference = null) {
  const numbers = values.filter((v) => v !== null && v !== undefined).slice(-SPARK_POINTS);
  if (numbers.length < 2) { root.replaceChildren(); return; }
  const all = reference ? [...numbers, reference] : numbers;
  const least = Math.min(...all), most = Math.max(...all), height = most - least || Math.abs(most) || 1;
  const y = (v) => (16 - ((v - least) / height) * 14).toFixed(1);
  const line = numbers.map((v, i) => `${((i / (numbers.length - 1)) * 100).toFixed(2)},${y(v)}`).join(" ");
  const marks = [svg("polyline", { points: line, class: "line" })];
  if (reference) marks.push(svg("line", { x1: 0, x2: 100, y1: y(reference), y2: y(reference), class: "reference" }));
  root.replaceChildren(...marks);
}

/** A bar whose whole is the limit: [[share, class], …] */
function bar(root, parts) {
  let x = 0;
  const rects = [svg("rect", { x: 0, y: 0, width: 100, height: 6, class: "rest" })];
  for (const [share, name] of parts) {
    const width = Math.max(0, Math.min(100 - x, (share ?? 0) * 100));
    rects.push(svg("rect", { x, y: 0, width, height: 6, class: name }));
    x += width;
  }
  root.replaceChildren(...rects);
}

/** Shares of an iteration by kind of op, over the last whole iterations that the page holds. */
function kindShares(model) {
  const shares = [0, 0, 0, 0, 0, 0, 0];
  let time = 0;
  for (const blocks of model.ops) {
    for (const block of blocks.slice(-6, -1)) {
      const start = model.startOf(block.iteration), end = model.endOf(block.iteration);
      if (start === null || end === null) continue;
      time += end - start;
      block.sums.forEach((ms, kind) => { shares[kind] += ms; });
    }
  }
  return time ? shares.map((s) => s / time) : null;
}

export function showFigures(model, run) {
  const usage = model.usage, whole = usage?.run, measured = usage?.iteration_ms ?? null, done = model.iterations;
  const predicted = model.predictedMs || null;
  const [value, unit] = duration(measured);
  spark(put("iteration", value, unit, measured === null ? `predicted ${durationText(predicted)}` : `predicted ${predicted ? duration(predicted)[0] : "–"}, ${difference(measured, predicted)}`),
    done.map((it) => (isWhole(it) ? it.end - it.start : null)), predicted);
  const shares = kindShares(model);
  bar(put("utilization", whole ? fixed(whole.utilization * 100, 1) : "–", "%", `predicted ${percent(whole?.predicted ?? model.predictedUtilization)}`),
    shares ? [[shares[0], "op-f"], [shares[1], "op-r"], [shares[2], "op-b"], [shares[3], "op-w"]] : [[whole?.utilization, "main"]]);
  bar(put("bubbles", whole ? fixed(whole.bubbles * 100, 1) : "–", "%", whole ? `all-reduce + opt. ${percent(whole.sync)}` : "no complete iteration yet"), [[whole?.bubbles, "main"], [whole?.sync, "op-a"]]);
  showWan(usage);
  const losses = done.filter((it) => it.loss != null), last = losses.at(-1)?.loss ?? null, first = model.firstLoss;
  spark(put("loss", fixed(last, 3), "", first && losses.length > 1 ? `${fixed(first.loss, 3)} at ${count(first.iteration + 1)}, ${difference(last, first.loss)}` : "no value yet"), losses.map((it) => it.loss));
  const made = run.iteration == null ? 0 : Math.max(0, run.iteration + 1);
  bar(put("progress", run.steps ? fixed((100 * made) / run.steps, 1) : "–", "%", `iteration ${count(made)} of ${count(run.steps)}`), [[made / (run.steps || 1), "main"]]);
}

function showWan(usage) {
  const links = (usage?.links ?? []).filter((link) => link.gbps != null), top = links.sort((x, y) => y.gbps - x.gbps)[0];
  const root = put("wan", top ? fixed(top.gbps, 2) : "–", "Gbit/s", top ? `cap ${fixed(top.cap_gbps, 2)}, busy ${percent(top.busy, 0)}${top.latency_ms == null ? "" : `, ${fixed(top.latency_ms, 1)} ms one way`}` : "nothing sent yet");
  bar(root, top ? [[top.gbps / top.cap_gbps, "main"]] : []);
}

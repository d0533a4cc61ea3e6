// An item in words: for the tooltip, the sheet under a narrow timeline, the live region and the table.
import { OP } from "../lib/wire.js";
import { bytes, count, difference, duration, instant, percent } from "../lib/format.js";
import { written } from "../lib/times.js";
import { bubblesIn } from "./gaps.js";
import { laneName } from "./gutter.js";
import { waitedFor } from "./waits.js";

const NAMES = {
  [OP.F]: "Forward", [OP.R]: "Recompute", [OP.B]: "Backward", [OP.W]: "Weight gradient", [OP.ALL_REDUCE]: "All-reduce",
  [OP.OPTIMIZER]: "Optimizer", [OP.PREFILL]: "Prefill", [OP.CHECKPOINT]: "Checkpoint copied",
};
const WHOLE = [OP.ALL_REDUCE, OP.OPTIMIZER, OP.CHECKPOINT, OP.PREFILL]; // of no microbatch

export function titleOf(scene, item) {
  if (item.type === "bubble") return "Bubble";
  if (item.type === "mark") return item.marks[0].text;
  if (item.type === "lane") return laneName(scene.model.lanes[item.lane]);
  if (item.type === "heat") return `${item.row.title}, ${item.row.lanes.length} GPUs`;
  if (item.type === "load") return `${item.gradient ? "Gradients out" : "Load"}, sub-model ${item.part + 1}`;
  if (item.type === "transfer") return `${item.gradient ? "Gradient" : "Activation"}, microbatch ${item.microbatch + 1}`;
  const name = NAMES[item.kind] ?? item.kind;
  if (WHOLE.includes(item.kind)) return name;
  return item.part == null ? `${name}, microbatch ${item.microbatch + 1}` : `${name}, mini-batch ${item.microbatch + 1}, sub-model ${item.part + 1}`;
}

const length = (ms, unit) => (ms < 10_000 ? instant(ms, unit) : duration(ms, unit).join(" "));

/** @returns {Array<[string, string]>} label and value, in reading order */
export function factsOf(scene, item) {
  const { model } = scene, { unit } = model, since = (time) => instant(time - scene.zero, unit);
  if (item.type === "heat") return [["Enter", item.row.isOpen ? "closes the row" : "opens the row"]];
  if (item.type === "mark") return markFacts(item, since);
  if (item.type === "lane") return laneFacts(scene, item.lane);
  const facts = [[placeOf(model, item), item.type === "transfer" ? `pipeline ${item.pipeline + 1}` : gpuOf(model, model.lanes[item.lane])]];
  facts.push(["start", since(item.start)], ["took", length(item.end - item.start, unit)]);
  if (item.predicted) {
    const predicted = item.predicted.end - item.predicted.start;
    facts.push(["predicted", `${length(predicted, unit)}, ${difference(item.end - item.start, predicted)}`]);
  }
  if (item.type === "bubble") return facts;
  if (item.type === "load") return item.bytes ? [...facts, ["carried", `${bytes(item.bytes)}, ${rate(item)}`]] : facts;
  const need = waitedFor(scene, item);
  if (need) facts.push(["waited for", need.reason]);
  if (item.type === "transfer") {
    if (item.bytes) facts.push(["carried", `${bytes(item.bytes)}, ${rate(item)}`]);
    facts.push(["arrived", since(item.arrives)]);
  } else if (need) facts.push([need.transfer || need.reason !== "its GPU" ? "arrived" : "free at", since(need.arrived)]);
  return facts;
}

const WORDS = { error: "fault", warn: "warning", info: "change" };

// Marks that stand on one spot are told together.
function markFacts({ marks }, since) {
  const [first, ...others] = marks, when = (mark, style) => written(new Date(mark.t * 1_000), style);
  const facts = [[WORDS[first.level] ?? first.level, when(first, "recent")], ["at", since(first.time)]];
  others.slice(0, 4).forEach((mark) => facts.push([when(mark, "recent cell"), mark.text]));
  if (others.length > 4) facts.push(["and", `${others.length - 4} more`]);
  return facts;
}

function laneFacts(scene, lane) {
  const { model, view } = scene, it = model.lanes[lane], idle = bubblesIn(scene, lane, view.from, view.to);
  return [
    [model.dcs[it.dc]?.name ?? "", gpuOf(model, it)], ["utilization", percent(scene.usage.lanes[lane] ?? null)],
    ["bubbles shown", count(idle.count)], ["idle in all", length(idle.ms, model.unit)], ["longest", length(idle.longest, model.unit)],
  ];
}

const rate = (item) => `${((item.bytes * 8) / Math.max(1e-6, item.end - item.start) / 1e6).toFixed(2)} Gbit/s`;

function placeOf(model, item) {
  if (item.type === "transfer") return `${model.dcs[item.from].name} → ${model.dcs[item.to].name}`;
  const lane = model.lanes[item.lane];
  if (lane.worker) return `worker ${lane.pipeline + 1}`;
  return `pipeline ${lane.pipeline + 1}, stage ${lane.stage + 1}`;
}

// Before a launch no GPU is chosen: the data centre is all that is known.
function gpuOf(model, lane) {
  return lane.node ? `${lane.node} gpu-${lane.gpu}` : model.dcs[lane.dc]?.name ?? "";
}

/** One sentence for the live region. */
export function sentence(scene, item) {
  return `${titleOf(scene, item)}. ${factsOf(scene, item).map(([label, value]) => `${label} ${value}`).join(", ")}.`;
}

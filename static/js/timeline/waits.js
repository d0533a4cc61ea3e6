// Why an op started when it did: the latest of the things that it needed.
import { OP, OPS } from "../lib/wire.js";
import { drawn, opItem, transferItem } from "./hit.js";

const F = OPS.indexOf(OP.F), B = OPS.indexOf(OP.B), A = OPS.indexOf(OP.ALL_REDUCE);

/** What `item` waited for last: {reason, arrived, item (its producer, or null), transfer (or null)}, or null. */
export function waitedFor(scene, item) {
  if (item.type === "transfer") return producer(scene, item);
  if (item.type !== "op") return null;
  const found = [previousOnGpu(scene, item), arrival(scene, item), item.kind === OP.ALL_REDUCE ? slowestPeer(scene, item) : null];
  const known = found.filter((need) => need && need.arrived <= item.start + 1);
  return known.sort((x, y) => y.arrived - x.arrived)[0] ?? null;
}

function find(scene, pipeline, stage, kind, microbatch, iteration) {
  const lane = scene.model.laneAt.get(`${pipeline}.${stage}`);
  if (lane === undefined) return null;
  for (const [block, shift, n] of drawn(scene, lane)) {
    if (n !== iteration) continue;
    const i = block.find(kind, microbatch);
    return i < 0 ? null : opItem(scene, lane, block, i, shift, n);
  }
  return null;
}

function previousOnGpu(scene, item) {
  if (item.index === 0) return null;
  for (const [block, shift, n] of drawn(scene, item.lane)) {
    if (n !== item.iteration) continue;
    const before = opItem(scene, item.lane, block, item.index - 1, shift, n);
    return { reason: "its GPU", arrived: before.end, item: before, transfer: null };
  }
  return null;
}

// A forward needs the activation of the stage before, a backward the gradient of the stage after.
function arrival(scene, item) {
  const kind = OPS.indexOf(item.kind);
  if (kind !== F && kind !== B) return null;
  const stage = item.stage + (kind === F ? -1 : 1), { model } = scene;
  const lane = model.laneAt.get(`${item.pipeline}.${stage}`);
  if (lane === undefined) return null;
  const source = find(scene, item.pipeline, stage, kind, item.microbatch, item.iteration);
  const payload = kind === F ? "activation" : "gradient", from = model.lanes[lane].dc, to = model.lanes[item.lane].dc;
  if (from === to) return source && { reason: `${payload} of S${stage + 1}`, arrived: source.end, item: source, transfer: null };
  const sent = transferOf(scene, lane, `${from}>${to}`, kind === B ? 1 : 0, item);
  return sent && { reason: `${model.dcs[from].name} ${payload}`, arrived: sent.arrives, item: source, transfer: sent };
}

function transferOf(scene, lane, link, gradient, item) {
  const { model } = scene, predicted = scene.mode === "predicted";
  const blocks = (predicted ? model.predictionAt(item.iteration).sent : model.sent).get(link)?.get(lane);
  if (!blocks) return null;
  const anchor = scene.anchors.find((a) => a.iteration === item.iteration);
  const [block, shift] = predicted ? [blocks, anchor?.start ?? 0] : [blocks.find((b) => b.iteration === item.iteration), 0];
  const i = block ? block.find(gradient, item.microbatch) : -1;
  return i < 0 ? null : transferItem(scene, lane, link, block, i, shift, item.iteration);
}

// An all-reduce begins when the last of the stage's replicas is done.
function slowestPeer(scene, item) {
  let last = null;
  scene.model.lanes.forEach((it, lane) => {
    if (it.stage !== item.stage || lane === item.lane) return;
    for (const [block, shift, n] of drawn(scene, lane)) {
      if (n !== item.iteration) continue;
      for (let i = block.n - 1; i >= 0; i--) {
        if (block.kind[i] >= A) continue;
        const op = opItem(scene, lane, block, i, shift, n);
        if (!last || op.end > last.end) last = op;
        break;
      }
    }
  });
  return last && { reason: `P${last.pipeline + 1} S${last.stage + 1}`, arrived: last.end, item: last, transfer: null };
}

function producer(scene, item) {
  const source = find(scene, item.pipeline, item.fromStage, item.gradient ? B : F, item.microbatch, item.iteration);
  if (!source) return null;
  const queued = item.start - source.end > 0.5;
  return { reason: queued ? "the link" : `S${source.stage + 1}`, arrived: source.end, item: source, transfer: null };
}


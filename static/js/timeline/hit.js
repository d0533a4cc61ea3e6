// What lies under a point, and what is known of it. Items are plain objects; times in ms since the epoch.
import { OPS, PAYLOAD } from "../lib/wire.js";
import { blockOf, lastAtOrBefore } from "./blocks.js";
import { eachGap, leastBubble, pieces } from "./gaps.js";
import { loadPlace } from "./lanes.js";
import { rowPlace, sentOn, shows } from "./links.js";
import { markAt } from "./marks.js";
import { rowAt } from "./rows.js";

/** @returns {object | null} the op, transfer or bubble at canvas position (x, y) */
export function itemAt(scene, x, y) {
  if (y < scene.head) return x < scene.left ? null : markAt(scene, x, y);
  const row = rowAt(scene.layout.rows, y - scene.head + scene.scroll), time = scene.time(x);
  if (!row) return null;
  if (x < scene.left) return row.kind === "lane" ? { type: "lane", lane: row.lane, row } : row.kind === "heat" ? { type: "heat", row } : null;
  if (row.kind === "lane") return loadAt(scene, row, time, y - scene.head + scene.scroll) ?? opAt(scene, row, time) ?? bubbleAt(scene, row, time);
  if (row.kind === "link") return transferAt(scene, row, time, y - scene.head + scene.scroll);
  return row.kind === "heat" ? { type: "heat", row } : null;
}

/** The blocks of a lane as drawn: [block, time to add]. */
export function drawn(scene, lane) {
  if (scene.mode === "predicted") return scene.anchors.map(({ start, iteration }) => [scene.model.predictionAt(iteration).ops[lane], start, iteration]);
  return scene.model.ops[lane].map((block) => [block, 0, block.iteration]);
}

function opAt(scene, row, time) {
  for (const [block, shift, iteration] of drawn(scene, row.lane)) {
    const i = block.at(time - shift);
    if (i >= 0) return opItem(scene, row.lane, block, i, shift, iteration);
  }
  return null;
}

function loadAt(scene, row, time, y) {
  if (!row.full || y < loadPlace(row, 0).top - 1) return null;
  const out = y < loadPlace(row, 1).top - 0.5 ? 0 : 1;
  for (const [block, shift, iteration] of drawn(scene, row.lane)) {
    const i = block.loads ? block.loads.at(time - shift, out) : -1;
    if (i >= 0) return loadItem(scene, row.lane, block, i, shift, iteration);
  }
  return null;
}

export function loadItem(scene, lane, block, i, shift, iteration) {
  const { pipeline, stage } = scene.model.lanes[lane], { loads } = block;
  return {
    type: "load", lane, pipeline, stage, part: loads.part[i], gradient: loads.out[i], bytes: loads.bytes[i],
    start: loads.start[i] + shift, end: loads.end[i] + shift, iteration, predicted: null,
  };
}

export function opItem(scene, lane, block, i, shift, iteration) {
  const { model } = scene, it = model.lanes[lane];
  return {
    type: "op", lane, part: it.worker ? block.partOf(i) : null, pipeline: it.pipeline, stage: it.stage, kind: OPS[block.kind[i]], microbatch: block.microbatch[i],
    start: block.start[i] + shift, end: block.end[i] + shift, iteration, index: i,
    predicted: scene.mode === "predicted" ? null : predictedOp(model, lane, block, i, iteration),
  };
}

function predictedOp(model, lane, block, i, iteration) {
  const other = model.predictionAt(iteration).ops[lane], j = other?.find(block.kind[i], block.microbatch[i], block.nth(i)) ?? -1, start = model.startOf(iteration);
  return j < 0 || start === null ? null : { start: other.start[j] + start, end: other.end[j] + start };
}

function bubbleAt(scene, row, time) {
  const gap = gaps(scene, row.lane, time, time).find((g) => g.start <= time && time < g.end);
  return gap ? { type: "bubble", lane: row.lane, ...gap } : null;
}

/** Bubbles of a lane that touch [from, to] (the shown window), in order. */
export function gaps(scene, lane, from = scene.view.from, to = scene.view.to) {
  const found = [], least = leastBubble(scene.model);
  for (const piece of pieces(scene, lane, from, to)) eachGap(piece, least, from, Math.max(to, from + 1e-6), (start, end, iteration) => found.push({ start, end, iteration }));
  return found;
}

function transferAt(scene, row, time, y) {
  for (const { lane, slot, block, shift, iteration } of sentOn(scene, row)) {
    const place = rowPlace(row, slot);
    if (row.split > 1 && (y < place.top - 1 || y > place.top + 5)) continue;
    const i = block.at(time - shift);
    if (i >= 0 && shows(row, block, i)) return transferItem(scene, lane, row.link, block, i, shift, iteration);
  }
  return null;
}

export function transferItem(scene, lane, link, block, i, shift, iteration) {
  const { model } = scene, [from, to] = link.split(">").map(Number);
  return {
    type: "transfer", lane, link, pipeline: model.lanes[lane].pipeline, from, to, fromStage: block.fromStage, toStage: block.toStage[i],
    gradient: block.gradient[i], microbatch: block.microbatch[i], start: block.start[i] + shift, end: block.end[i] + shift,
    arrives: block.arrives[i] + shift, bytes: block.bytes[i], iteration,
    predicted: scene.mode === "predicted" ? null : predictedTransfer(model, lane, link, block, i, iteration),
  };
}

function predictedTransfer(model, lane, link, block, i, iteration) {
  const other = model.predictionAt(iteration).sent.get(link)?.get(lane), start = model.startOf(iteration);
  const j = other ? other.find(block.gradient[i], block.microbatch[i]) : -1;
  return j < 0 || start === null ? null : { start: other.start[j] + start, end: other.end[j] + start };
}

/** The op of a lane nearest to `time`, or null. */
export function nearestOp(scene, lane, time) {
  let best = null, distance = Infinity;
  for (const [block, shift, iteration] of drawn(scene, lane)) {
    if (!block.n || block.first + shift - time > distance || time - block.last - shift > distance) continue;
    const near = Math.max(0, lastAtOrBefore(block.start, time - shift));
    for (const i of [near, Math.min(block.n - 1, near + 1)]) {
      const away = Math.max(block.start[i] + shift - time, time - block.end[i] - shift, 0);
      if (away < distance) { distance = away; best = opItem(scene, lane, block, i, shift, iteration); }
    }
  }
  return best;
}

/** The op before (−1) or after (+1) an op on its lane. */
export function neighbour(scene, item, step) {
  const list = drawn(scene, item.lane), at = list.findIndex(([, , iteration]) => iteration === item.iteration);
  if (at < 0) return null;
  let [block, shift, iteration] = list[at], i = item.index + step;
  if (i < 0 || i >= block.n) {
    const next = list[at + step];
    if (!next || !next[0].n) return null;
    [block, shift, iteration] = next;
    i = step > 0 ? 0 : block.n - 1;
  }
  return opItem(scene, item.lane, block, i, shift, iteration);
}

/** The op or transfer of a lane that a permalink names ({iteration, kind, microbatch}), or null. */
export function itemOf(scene, lane, { iteration, kind, microbatch }) {
  if (kind === PAYLOAD.ACTIVATION || kind === PAYLOAD.GRADIENT) {
    const gradient = kind === PAYLOAD.GRADIENT ? 1 : 0;
    for (const [link, byLane] of scene.model.sent) {
      const block = blockOf(byLane.get(lane) ?? [], iteration), i = block ? block.find(gradient, microbatch) : -1;
      if (i >= 0) return transferItem(scene, lane, link, block, i, 0, iteration);
    }
    return null;
  }
  for (const [block, shift, n] of drawn(scene, lane)) {
    const i = n === iteration ? block.find(OPS.indexOf(kind), microbatch) : -1;
    if (i >= 0) return opItem(scene, lane, block, i, shift, n);
  }
  return null;
}

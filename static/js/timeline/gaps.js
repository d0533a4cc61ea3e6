// Bubbles: the times in which a GPU had nothing to do, found once per block and then only looked up.
import { lastAtOrBefore } from "./blocks.js";

// What is shorter than this share of an iteration is the pause between two ops, not a bubble.
export const LEAST_SHARE = 0.004;

/** The least length of a bubble, ms. */
export const leastBubble = (model) => (model.predictedMs || model.typicalMs || 1) * LEAST_SHARE;

/** Idle times between the ops of one block: starts, ends and the sum of all before each, ms. */
class Gaps {
  constructor(block, least) {
    const from = [], to = [];
    let until = block.n ? block.end[0] : 0;
    for (let i = 1; i < block.n; i++) {
      if (block.start[i] - until > least) { from.push(until); to.push(block.start[i]); }
      until = Math.max(until, block.end[i]);
    }
    this.least = least;
    this.n = from.length;
    this.from = Float64Array.from(from);
    this.to = Float64Array.from(to);
    this.sum = new Float64Array(this.n + 1);
    for (let i = 0; i < this.n; i++) this.sum[i + 1] = this.sum[i] + to[i] - from[i];
  }

  /** Index of the first gap that ends after `time`. */
  after(time) { return Math.min(this.n, lastAtOrBefore(this.to, time) + 1); }
}

/** @returns {Gaps} those of at least `least` ms; kept with the block until another limit is asked for */
export function gapsOf(block, least) {
  if (!block.gaps || Math.abs(block.gaps.least - least) > 0.2 * least) block.gaps = new Gaps(block, least);
  return block.gaps;
}

/**
 * The blocks of a lane as drawn in [from, to], with the idle time that surrounds each.
 * @returns {Array<{block, shift: number, iteration: number, lead: number, tail: number | null}>}
 *   lead: since when the GPU was idle before the block's first op; tail: until when after its last, null where not known
 */
export function pieces(scene, lane, from = scene.view.from, to = scene.view.to) {
  const { model } = scene;
  if (scene.mode === "predicted") return predictedPieces(model, lane, scene.anchors, from, to);
  const blocks = model.ops[lane], found = [];
  for (let b = firstTouching(blocks, from); b < blocks.length; b++) {
    const block = blocks[b], before = blocks[b - 1], next = blocks[b + 1];
    if (!block.n) continue;
    // Idle time between iterations counts from the last op before, where that is known.
    const joined = before?.n && before.iteration === block.iteration - 1;
    const lead = joined ? before.last : Math.min(model.startOf(block.iteration) ?? block.first, block.first);
    if (lead > to) break;
    const tail = next?.iteration === block.iteration + 1 ? null : model.endOf(block.iteration);
    found.push({ block, shift: 0, iteration: block.iteration, lead, tail });
  }
  return found;
}

function predictedPieces(model, lane, anchors, from, to) {
  return anchors.map(({ start, iteration }) => {
    const { ops, ms } = model.predictionAt(iteration);
    return { block: ops[lane], shift: start, iteration, lead: start, tail: start + ms };
  }).filter(({ block, lead, tail }) => block?.n && lead <= to && tail >= from);
}

/** Calls `visit(start, end, iteration)` for each bubble of a piece that touches [from, to], in order. */
export function eachGap({ block, shift, iteration, lead, tail }, least, from, to, visit) {
  const first = block.first + shift, last = block.last + shift;
  if (first - lead > least && first > from && lead < to) visit(lead, first, iteration);
  const gaps = gapsOf(block, least);
  for (let i = gaps.after(from - shift); i < gaps.n && gaps.from[i] + shift < to; i++) visit(gaps.from[i] + shift, gaps.to[i] + shift, iteration);
  if (tail !== null && tail - last > least && tail > from && last < to) visit(last, tail, iteration);
}

/**
 * Bubbles of a lane in [from, to] of the scene.
 * @returns {{count, ms, longest, known}} how many touch it, how long they are inside it, the longest whole one, and of how
 *   much of [from, to] it is known what the GPU did; ms
 */
export function bubblesIn(scene, lane, from, to) {
  const least = leastBubble(scene.model), total = { count: 0, ms: 0, longest: 0, known: 0 };
  for (const piece of pieces(scene, lane, from, to)) {
    const until = piece.tail ?? piece.block.last + piece.shift;
    total.known += Math.max(0, Math.min(to, until) - Math.max(from, piece.lead));
    eachGap(piece, least, from, to, (start, end) => {
      total.count++;
      total.ms += Math.min(end, to) - Math.max(start, from);
      total.longest = Math.max(total.longest, end - start);
    });
  }
  return total;
}

/** Index of the first block whose last op ends at or after `from`, or the one before it, from which a bubble may reach in. */
export function firstTouching(blocks, from) {
  let low = 0, high = blocks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (blocks[middle].last < from) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

// How busy lanes were over time, summed once per iteration so that a frame costs pixels, not spans.
import { blockOf } from "./blocks.js";

const BINS = 1024;

/** Busy time of ops of F, R, B, W (and P) of some lanes, cumulated over the bins of one iteration. */
class Coverage {
  constructor(blocks, start, end, lanes) {
    this.start = start;
    this.end = end;
    this.sum = new Float32Array(BINS + 1);
    const scale = BINS / Math.max(1e-9, end - start);
    for (const block of blocks) {
      for (let i = 0; i < block.n; i++) {
        if (block.kind[i] === 4 || block.kind[i] === 5) continue;
        spread(this.sum, (block.start[i] - start) * scale, (block.end[i] - start) * scale);
      }
    }
    for (let bin = 1; bin <= BINS; bin++) this.sum[bin] = this.sum[bin] / lanes + this.sum[bin - 1];
  }

  /** Mean shares that were busy in `n` steps of `step` ms from `from` on, into `out`. */
  shares(out, n, from, step) {
    const scale = BINS / Math.max(1e-9, this.end - this.start);
    let low = clamp((from - this.start) * scale), before = this.#at(low);
    for (let i = 0; i < n; i++) {
      const high = clamp((from + (i + 1) * step - this.start) * scale), sum = this.#at(high);
      out[i] = high > low ? (sum - before) / (high - low) : 0;
      [low, before] = [high, sum];
    }
  }

  #at(x) {
    const bin = Math.min(BINS - 1, Math.floor(x));
    return this.sum[bin] + (this.sum[bin + 1] - this.sum[bin]) * (x - bin);
  }
}

const clamp = (x) => Math.min(BINS, Math.max(0, x));

// sum[bin + 1] collects what falls into bin, so that the cumulated sum starts at 0.
function spread(sum, from, to) {
  const low = clamp(from), high = clamp(to);
  let bin = Math.floor(low);
  if (bin >= BINS) return;
  if (high <= bin + 1) { sum[bin + 1] += high - low; return; }
  sum[bin + 1] += bin + 1 - low;
  for (bin++; bin + 1 <= high; bin++) sum[bin + 1] += 1;
  if (bin < BINS) sum[bin + 1] += high - bin;
}

/** Coverages of rows by iteration; an entry is rebuilt when more of its lanes have reported. */
export class CoverageCache {
  #entries = new Map();

  /** Of a prediction, once for all iterations in which it holds: its times count from the start of one. */
  predicted(prediction, key, lanes) {
    const id = `${key}|predicted`, known = this.#entries.get(id)?.get(prediction);
    if (known) return known;
    const coverage = new Coverage(lanes.map((lane) => prediction.ops[lane]), 0, prediction.ms, lanes.length);
    if (!this.#entries.has(id)) this.#entries.set(id, new WeakMap());
    this.#entries.get(id).set(prediction, coverage);
    return coverage;
  }

  /** @param {string} key row  @param {number[]} lanes indexes  @returns {Coverage | null} */
  get(model, key, lanes, anchor) {
    const blocks = [];
    for (const lane of lanes) {
      const block = blockOf(model.ops[lane], anchor.iteration);
      if (block) blocks.push(block);
    }
    if (!blocks.length) return null;
    const id = `${key}|${anchor.iteration}`, end = anchor.end ?? Math.max(...blocks.map((b) => b.last));
    const known = this.#entries.get(id);
    if (known && known.blocks === blocks.length && known.end === end) return known.coverage;
    const coverage = new Coverage(blocks, anchor.start, end, lanes.length);
    if (this.#entries.size > 20_000) this.#entries.clear();
    this.#entries.set(id, { blocks: blocks.length, end, coverage });
    return coverage;
  }

  clear() { this.#entries.clear(); }
}

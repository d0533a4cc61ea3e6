// Spans in typed arrays: one block is what one GPU did, or sent over one link, in one iteration.
export const KINDS = ["F", "R", "B", "W", "A", "O", "P"];
const KIND_OF = new Map(KINDS.map((kind, index) => [kind, index]));

/** The ops of one lane in one iteration, sorted by start. Times in ms. */
export class OpBlock {
  /** @param {number} iteration  @param {Array} codes  [op, microbatch, start, end] */
  constructor(iteration, codes) {
    const sorted = codes.filter((code) => KIND_OF.has(code[0])).sort((x, y) => x[2] - y[2]);
    this.iteration = iteration;
    this.n = sorted.length;
    this.kind = Uint8Array.from(sorted, (code) => KIND_OF.get(code[0]));
    this.microbatch = Int32Array.from(sorted, (code) => code[1] ?? -1);
    this.start = Float64Array.from(sorted, (code) => code[2]);
    this.end = Float64Array.from(sorted, (code) => code[3]);
    this.first = this.n ? this.start[0] : 0;
    this.last = this.n ? this.end[this.n - 1] : 0;
  }

  /** Index of the op that runs at `time`, or −1. */
  at(time) {
    const i = lastAtOrBefore(this.start, time);
    return i >= 0 && time < this.end[i] ? i : -1;
  }

  /** Index of the op of a kind and microbatch, or −1. */
  find(kind, microbatch) {
    for (let i = 0; i < this.n; i++) if (this.kind[i] === kind && this.microbatch[i] === microbatch) return i;
    return -1;
  }
}

/** What one GPU sent to one other stage in one iteration, sorted by start. Times in ms. */
export class TransferBlock {
  /** @param {Array} codes  ["T", microbatch, start, end, arrives, from_stage, to_stage, payload, bytes] */
  constructor(iteration, codes) {
    const sorted = [...codes].sort((x, y) => x[2] - y[2]);
    this.iteration = iteration;
    this.n = sorted.length;
    this.microbatch = Int32Array.from(sorted, (code) => code[1] ?? -1);
    this.start = Float64Array.from(sorted, (code) => code[2]);
    this.end = Float64Array.from(sorted, (code) => code[3]);
    this.arrives = Float64Array.from(sorted, (code) => code[4]);
    this.gradient = Uint8Array.from(sorted, (code) => (code[7] === "g" ? 1 : 0));
    this.bytes = Float64Array.from(sorted, (code) => code[8] ?? 0);
    this.fromStage = sorted[0][5];
    this.toStage = sorted[0][6];
    this.first = this.start[0];
    this.last = this.end[this.n - 1];
  }

  at(time) {
    const i = lastAtOrBefore(this.start, time);
    return i >= 0 && time < this.end[i] ? i : -1;
  }

  find(gradient, microbatch) {
    for (let i = 0; i < this.n; i++) if (this.gradient[i] === gradient && this.microbatch[i] === microbatch) return i;
    return -1;
  }
}

/** Index of the last value ≤ x in an ascending array, or −1. */
export function lastAtOrBefore(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Puts a block into a list sorted by iteration, in the place of an older block of that iteration. */
export function putBlock(blocks, block) {
  let i = blocks.length;
  while (i > 0 && blocks[i - 1].iteration > block.iteration) i--;
  if (i > 0 && blocks[i - 1].iteration === block.iteration) {
    const old = blocks[i - 1].n;
    blocks[i - 1] = block;
    return block.n - old;
  }
  blocks.splice(i, 0, block);
  return block.n;
}

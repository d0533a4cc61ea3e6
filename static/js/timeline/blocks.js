// Spans in typed arrays: one block is what one GPU did, or sent over one link, in one iteration.
import { LOAD, OPS, PAYLOAD } from "../lib/wire.js";

const KIND_OF = new Map(OPS.map((kind, index) => [kind, index]));

/** The ops of one lane in one iteration, sorted by start. Times in ms. */
export class OpBlock {
  /** @param {number} iteration  @param {Array} codes  [op, microbatch, start, end] */
  constructor(iteration, codes) {
    const sorted = codes.filter((code) => KIND_OF.has(code[0])).sort((x, y) => x[2] - y[2]);
    this.iteration = iteration;
    this.n = sorted.length;
    /** How many spans the server sent with it, transfers inside a data centre (which are not drawn) among them. */
    this.told = codes.length;
    this.kind = Uint8Array.from(sorted, (code) => KIND_OF.get(code[0]));
    this.microbatch = Int32Array.from(sorted, (code) => code[1] ?? -1);
    this.start = Float64Array.from(sorted, (code) => code[2]);
    this.end = Float64Array.from(sorted, (code) => code[3]);
    this.first = this.n ? this.start[0] : 0;
    this.last = this.n ? this.end[this.n - 1] : 0;
    const loads = codes.filter((code) => code[0] === LOAD.IN || code[0] === LOAD.OUT);
    /** Copies between host and GPU meanwhile, or null. */
    this.loads = loads.length ? new LoadBlock(loads) : null;
  }

  /** How long ops of each kind took in all, ms, in the order of OPS. */
  get sums() {
    if (this.summed) return this.summed;
    this.summed = new Float64Array(OPS.length);
    for (let i = 0; i < this.n; i++) this.summed[this.kind[i]] += this.end[i] - this.start[i];
    return this.summed;
  }

  /** How long the GPU computed: F, R, B and W, ms. */
  get busy() { return this.sums[0] + this.sums[1] + this.sums[2] + this.sums[3]; }

  /** Index of the op that runs at `time`, or −1. */
  at(time) {
    const i = lastAtOrBefore(this.start, time);
    return i >= 0 && time < this.end[i] ? i : -1;
  }

  /** Index of the op of a kind and microbatch, or −1; the `nth` (from 0) where a stage has several chunks. */
  find(kind, microbatch, nth = 0) {
    for (let i = 0, left = nth; i < this.n; i++) if (this.kind[i] === kind && this.microbatch[i] === microbatch && left-- === 0) return i;
    return -1;
  }

  /** The sub-model of op `i` where the model is swapped: forward passes go through them from the first on, others from the last. */
  partOf(i) {
    if (this.microbatch[i] < 0) return null;
    let all = 0;
    for (let j = 0; j < this.n; j++) if (this.kind[j] === this.kind[i] && this.microbatch[j] === this.microbatch[i]) all++;
    return this.kind[i] === 0 ? this.nth(i) : all - 1 - this.nth(i);
  }

  /** How many ops of the same kind and microbatch come before op `i`. */
  nth(i) {
    let before = 0;
    for (let j = 0; j < i; j++) if (this.kind[j] === this.kind[i] && this.microbatch[j] === this.microbatch[i]) before++;
    return before;
  }
}

/** Sub-models that one GPU loaded in one iteration, and gradients that left it, sorted by start. Times in ms. */
export class LoadBlock {
  /** @param {Array} codes  [code, sub-model, start, end, bytes] */
  constructor(codes) {
    const sorted = [...codes].sort((x, y) => x[2] - y[2]);
    this.n = sorted.length;
    this.part = Int32Array.from(sorted, (code) => code[1]);
    this.out = Uint8Array.from(sorted, (code) => (code[0] === LOAD.OUT ? 1 : 0));
    this.start = Float64Array.from(sorted, (code) => code[2]);
    this.end = Float64Array.from(sorted, (code) => code[3]);
    this.bytes = Float64Array.from(sorted, (code) => code[4] ?? 0);
  }

  /** Index of the copy in one direction that runs at `time`, or −1. The two directions overlap. */
  at(time, out) {
    for (let i = lastAtOrBefore(this.start, time); i >= 0; i--) if (this.out[i] === out) return time < this.end[i] ? i : -1;
    return -1;
  }
}

/** What one GPU sent to one other stage in one iteration, sorted by start. Times in ms. */
export class TransferBlock {
  /** @param {Array} codes  [code, microbatch, start, end, arrives, from_stage, to_stage, payload, bytes] */
  constructor(iteration, codes) {
    const sorted = [...codes].sort((x, y) => x[2] - y[2]);
    this.iteration = iteration;
    this.n = sorted.length;
    this.microbatch = Int32Array.from(sorted, (code) => code[1] ?? -1);
    this.start = Float64Array.from(sorted, (code) => code[2]);
    this.end = Float64Array.from(sorted, (code) => code[3]);
    this.arrives = Float64Array.from(sorted, (code) => code[4]);
    this.gradient = Uint8Array.from(sorted, (code) => (code[7] === PAYLOAD.GRADIENT ? 1 : 0));
    this.bytes = Float64Array.from(sorted, (code) => code[8] ?? 0);
    this.fromStage = sorted[0][5];
    // A stage between two of another data centre sends to both over one link.
    this.toStage = Int32Array.from(sorted, (code) => code[6]);
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

/** The block of an iteration in a list sorted by iteration, or null. */
export function blockOf(blocks, iteration) {
  let low = 0, high = blocks.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1, found = blocks[middle].iteration;
    if (found === iteration) return blocks[middle];
    if (found < iteration) low = middle + 1;
    else high = middle - 1;
  }
  return null;
}

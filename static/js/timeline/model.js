// Everything that the timeline knows: lanes, links, what was predicted and what was measured, in ms since the epoch.
import { TRANSFER } from "../lib/wire.js";
import { OpBlock, TransferBlock, blockOf, putBlock } from "./blocks.js";

// What the page keeps: the oldest iterations go first.
const MOST_SPANS = 240_000;
const MOST_ITERATIONS = 400;
const MOST_ROLLUPS = 2_000;
const MOST_MARKS = 1_000;

export class TimelineModel {
  constructor() {
    this.version = 0;
    this.reset({});
  }

  /** Takes lanes, dcs, links and the predictions of a snapshot, and forgets all spans. `unit`: of what is drawn where that is not ms. `measured`: what stands in `predicted` was measured elsewhere. */
  reset({
    lanes = [], dcs = [], links = [], predicted = null, predicted_before: before = [], usage = null, first_loss: firstLoss = null, unit = "ms", measured = false,
  }) {
    this.unit = unit;
    this.measured = measured;
    this.lanes = lanes;
    this.dcs = dcs;
    this.links = links;
    this.usage = usage;
    this.laneOfRank = new Map(lanes.map((lane, i) => [lane.rank, i]));
    this.nodeLabels = nodeLabels(lanes);
    this.laneAt = new Map(lanes.map((lane, i) => [`${lane.pipeline}.${lane.stage}`, i]));
    this.ops = lanes.map(() => []);
    this.sent = new Map();
    this.iterations = [];
    this.iterationOf = new Map();
    this.spanCount = 0;
    this.marks = [];
    this.early = null;
    this.epoch = null;
    /** Iterations [first, last] that are looked at and stay, however old. */
    this.held = null;
    /** The first loss of the run, {iteration, loss}: the page may hold only later iterations. */
    this.firstLoss = firstLoss;
    this.predictions = [];
    this.setPredicted(predicted, before);
    this.version++;
  }

  /** Takes over usage, links and nodes of a snapshot of the same attempt; what was measured stays. */
  renew({ links, lanes, usage, predicted, predicted_before: before }) {
    if (predicted) this.setPredicted(predicted, before);
    if (links) this.links = links;
    if (usage) this.usage = usage;
    if (lanes) { this.lanes = lanes; this.nodeLabels = nodeLabels(lanes); }
    this.version++;
  }

  /** Whether a snapshot speaks of the same GPUs and times as what is held; what is predicted may have changed since. */
  isSame({ lanes = [], epoch = null, predicted = null }) {
    const same = (a, b) => a.rank === b.rank && a.pipeline === b.pipeline && a.stage === b.stage && a.dc === b.dc;
    return this.epoch !== null && epoch === this.epoch && lanes.length === this.lanes.length && lanes.every((lane, i) => same(lane, this.lanes[i]))
      && Boolean(predicted?.iteration_ms) === Boolean(this.predictedMs);
  }

  /** @param {Array<{seq: number, t: number, level: string, text: string}>} marks  t in Unix s; kept with their time in ms since the epoch */
  addMarks(marks) {
    if (this.epoch === null) { this.early = [...(this.early ?? []), ...(marks ?? [])]; return; }
    const known = new Set(this.marks.map((mark) => mark.seq));
    for (const mark of [...(this.early ?? []), ...(marks ?? [])]) {
      if (!known.has(mark.seq)) this.marks.push({ ...mark, time: mark.t * 1_000 - this.epoch });
      known.add(mark.seq);
    }
    this.early = null;
    this.marks.sort((x, y) => x.time - y.time || x.seq - y.seq);
    this.marks.splice(0, this.marks.length - MOST_MARKS);
  }

  /**
   * @param {object | null} predicted  what holds now: {since, iteration_ms, utilization, spans}
   * @param {Array<object>} before  what held until then, oldest first; without spans where the page is not known to show those iterations
   */
  setPredicted(predicted, before = []) {
    this.predictions = [...before, predicted ?? {}].map((one) => this.predictions.find((held) => isOf(held, one)) ?? this.#prediction(one));
    const now = this.predictions.at(-1);
    this.predictedMs = now.ms;
    this.predictedUtilization = now.utilization;
    this.predictedOps = now.ops;
    this.predictedSent = now.sent;
    this.medianForward = medianForward(now.ops);
  }

  /** Takes over spans of predictions that held in iterations of long ago. */
  addPredictions(before) {
    for (const one of before ?? []) {
      const at = this.predictions.findIndex((held) => held.since === one.since && held.ms === one.iteration_ms);
      if (one.spans && at >= 0 && !this.predictions[at].drawn) this.predictions[at] = this.#prediction(one);
    }
  }

  #prediction({ since = 0, iteration_ms: ms = 0, utilization = null, spans = null }) {
    const perRank = new Map(), sent = new Map();
    for (const [rank, ...codes] of spans ?? []) perRank.set(rank, codes);
    const ops = this.lanes.map((lane) => new OpBlock(0, perRank.get(lane.rank) ?? []));
    this.lanes.forEach((lane, i) => {
      for (const [key, block] of this.#transfers(lane, 0, perRank.get(lane.rank) ?? [])) {
        if (!sent.has(key)) sent.set(key, new Map());
        sent.get(key).set(i, block);
      }
    });
    return { since, ms, utilization, drawn: Boolean(spans?.length), ops, sent };
  }

  /** What was predicted of an iteration: {since, ms, utilization, ops (by lane), sent}. */
  predictionAt(iteration) { return this.predictions.findLast((one) => one.since <= iteration) ?? this.predictions[0]; }

  addIterations(entries) {
    for (const entry of entries ?? []) {
      if (entry.loss != null && !(this.firstLoss?.iteration <= entry.iteration)) this.firstLoss = { iteration: entry.iteration, loss: entry.loss };
      const known = this.iterationOf.get(entry.iteration);
      if (known) Object.assign(known, entry);
      else {
        const copy = { ...entry };
        this.iterationOf.set(entry.iteration, copy);
        this.iterations.push(copy);
        const n = this.iterations.length;
        if (n > 1 && this.iterations[n - 2].iteration > entry.iteration) this.iterations.sort((x, y) => x.iteration - y.iteration);
      }
    }
    while (this.iterations.length > MOST_ROLLUPS) this.iterationOf.delete(this.iterations.shift().iteration);
    this.version++;
  }

  /** @param {Array<{rank: number, iteration: number, spans: Array}>} batches */
  addSpans(batches) {
    for (const { rank, iteration, spans } of batches ?? []) {
      const i = this.laneOfRank.get(rank);
      if (i === undefined) continue;
      this.spanCount += putBlock(this.ops[i], new OpBlock(iteration, spans));
      for (const [key, block] of this.#transfers(this.lanes[i], iteration, spans)) {
        this.spanCount += putBlock(this.#sentBy(key, i), block);
      }
    }
    if (!this.medianForward) this.medianForward = medianForward(this.ops.flat());
    this.#forget();
    this.version++;
  }

  #sentBy(key, lane) {
    if (!this.sent.has(key)) this.sent.set(key, new Map());
    const byLane = this.sent.get(key);
    if (!byLane.has(lane)) byLane.set(lane, []);
    return byLane.get(lane);
  }

  /** The transfers of one lane that cross between DCs, as [link key, block]. */
  #transfers(lane, iteration, codes) {
    const groups = new Map();
    for (const code of codes) {
      if (code[0] !== TRANSFER) continue;
      const to = this.lanes[this.laneAt.get(`${lane.pipeline}.${code[6]}`)];
      if (!to || to.dc === lane.dc) continue;
      const key = `${lane.dc}>${to.dc}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(code);
    }
    return [...groups].map(([key, list]) => [key, new TransferBlock(iteration, list)]);
  }

  #forget() {
    const kept = () => this.ops.reduce((most, blocks) => Math.max(most, blocks.length), 0);
    let iterations = kept();
    while (iterations > 2 && (this.spanCount > MOST_SPANS || iterations > MOST_ITERATIONS)) {
      const oldest = this.#oldest();
      if (oldest === null) return;
      for (const blocks of this.ops) this.#drop(blocks, oldest);
      for (const byLane of this.sent.values()) for (const blocks of byLane.values()) this.#drop(blocks, oldest);
      iterations--;
    }
  }

  // The oldest iteration of which spans are held and that nobody looks at.
  #oldest() {
    let oldest = Infinity;
    for (const blocks of this.ops) {
      const block = blocks.find((b) => !this.held || b.iteration < this.held[0] || b.iteration > this.held[1]);
      if (block) oldest = Math.min(oldest, block.iteration);
    }
    return Number.isFinite(oldest) ? oldest : null;
  }

  #drop(blocks, iteration) {
    const i = blocks.findIndex((block) => block.iteration === iteration);
    if (i >= 0) this.spanCount -= blocks.splice(i, 1)[0].n;
  }

  /** Iterations in [from, to] of which not every GPU's spans are held although they ended: [first, last] or null. */
  missing(from, to) {
    const lacking = this.iterations.filter((it) => isWhole(it) && it.end > from && it.start < to && this.ops.some((blocks) => !blockOf(blocks, it.iteration)));
    return lacking.length ? [lacking[0].iteration, lacking.at(-1).iteration] : null;
  }

  /** Until when anything was measured, ms; 0 before the first span. */
  get frontier() {
    let last = 0;
    for (const blocks of this.ops) if (blocks.length) last = Math.max(last, blocks[blocks.length - 1].last);
    return last;
  }

  /** What tells a lane's node from the others of its data centre; empty where there is only one. */
  nodeLabel(lane) { return this.nodeLabels.get(`${lane.dc}.${lane.node}`) ?? ""; }

  /** How many of the server's spans are held. */
  get told() {
    let sum = 0;
    for (const blocks of this.ops) for (const block of blocks) sum += block.told;
    return sum;
  }

  /** Whether spans of any iteration from `first` to `last` are held. */
  hasSpansOf(first, last) { return this.ops.some((blocks) => blocks.some(({ iteration }) => iteration >= first && iteration <= last)); }

  get hasSpans() { return this.ops.some((blocks) => blocks.length > 0); }

  /** Start of an iteration: as reported, else its first span, else null. */
  startOf(iteration) {
    const start = this.iterationOf.get(iteration)?.start;
    if (start !== null && start !== undefined) return start;
    if (this.starts?.version !== this.version) this.starts = { version: this.version, of: new Map() };
    if (!this.starts.of.has(iteration)) this.starts.of.set(iteration, this.#firstSpan(iteration));
    return this.starts.of.get(iteration);
  }

  #firstSpan(iteration) {
    let first = Infinity;
    for (const blocks of this.ops) {
      const block = blockOf(blocks, iteration);
      if (block?.n) first = Math.min(first, block.first);
    }
    return Number.isFinite(first) ? first : null;
  }

  /** End of an iteration that all GPUs have reported, else null. */
  endOf(iteration) {
    const known = this.iterationOf.get(iteration);
    return known && isWhole(known) ? known.end : null;
  }

  /** The measured length of an iteration: the median of the last ten, or what was predicted. */
  get typicalMs() {
    const lengths = this.iterations.slice(-12).filter(isWhole).slice(-10).map((it) => it.end - it.start);
    if (!lengths.length) return this.predictedMs || 1;
    return lengths.sort((x, y) => x - y)[lengths.length >> 1];
  }

  /** Numbers and starts of the iterations that touch [from, to], and those predicted to follow the last. */
  anchors(from, to, follow = true) {
    const found = [];
    for (const it of this.iterations) {
      if (it.start == null || it.start > to) continue;
      if ((it.end ?? it.start + this.typicalMs) >= from) found.push({ iteration: it.iteration, start: it.start, end: isWhole(it) ? it.end : null });
    }
    const length = this.predictedMs || this.typicalMs;
    if (!follow || !length) return found;
    const last = found.at(-1) ?? { iteration: -1, start: this.iterations.length ? NaN : 0, end: this.iterations.length ? null : 0 };
    let next = last.end ?? last.start + length;
    for (let n = last.iteration + 1; next < to && found.length < 2_000; n++, next += length) {
      found.push({ iteration: n, start: next, end: next + length, ahead: true });
    }
    return found;
  }
}

// "us-east-01" and "us-east-02" share a beginning: their GPUs are told apart by "01" and "02".
function nodeLabels(lanes) {
  const byDc = new Map(), labels = new Map();
  for (const { dc, node } of lanes) if (node) byDc.set(dc, (byDc.get(dc) ?? new Set()).add(node));
  for (const [dc, nodes] of byDc) {
    const names = [...nodes];
    if (names.length < 2) continue;
    let shared = 0;
    while (names.every((name) => name[shared] !== undefined && name[shared] === names[0][shared])) shared++;
    while (shared > 0 && /[0-9]/.test(names[0][shared - 1])) shared--;
    for (const name of names) labels.set(`${dc}.${name}`, name.slice(shared).slice(0, 6) || name.slice(-6));
  }
  return labels;
}

/** All GPUs have reported the iteration: the server knows its utilization, and its end no longer moves. */
export const isWhole = (it) => it.start != null && it.end != null && it.utilization != null;

// A prediction that is held stands for one that the server tells without spans, or again.
const isOf = (held, { since = 0, iteration_ms: ms = 0, spans }) => held.since === since && held.ms === ms && (held.drawn || !spans?.length);

function medianForward(blocks) {
  const lengths = [];
  for (const block of blocks) {
    for (let i = 0; i < block.n && lengths.length < 500; i++) if (block.kind[i] === 0) lengths.push(block.end[i] - block.start[i]);
  }
  return lengths.sort((x, y) => x - y)[lengths.length >> 1] ?? 0;
}

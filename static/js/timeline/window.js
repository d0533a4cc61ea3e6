// The shown window of time: pan, zoom, follow the run, freeze. Times in ms since the epoch.
import { isWhole } from "./model.js";

const BEFORE = 0.03, AFTER = 0.16, LEAST_MS = 0.5;

export class TimeWindow {
  constructor(model, { iterations = 1, still = false } = {}) {
    this.model = model;
    this.still = still;
    this.start = iterations;
    this.iterations = iterations;
    this.live = true;
    this.base = 0;
    this.from = 0;
    this.to = 1;
    /** What a still timeline shows at first, ms, where that is more than its own iteration: a shared axis. */
    this.whole = 0;
  }

  get span() { return this.to - this.from; }

  /** Moves with the run where it is live. Returns true where the window changed. */
  follow() {
    if (!this.live) return false;
    this.#rebase();
    const [from, to] = this.still ? this.#whole() : this.#latest();
    if (from === this.from && to === this.to) return false;
    [this.from, this.to] = [from, to];
    return true;
  }

  // The length of an iteration as the scale sees it moves only when the run's has moved for good.
  #rebase() {
    const typical = this.model.typicalMs;
    if (!this.base || Math.abs(typical - this.base) > 0.1 * this.base) this.base = typical;
  }

  #whole() {
    const length = (this.whole || this.model.predictedMs || this.base) * this.iterations;
    return [0, length * 1.02];
  }

  #latest() {
    const length = this.base * this.iterations, done = this.model.iterations.filter(isWhole);
    // A part of an iteration is the end of the last whole one: later than that, lanes have reported unevenly.
    const until = done.at(-1)?.end ?? (this.model.frontier || length * (1 - AFTER));
    if (this.iterations < 0.95) return [until - length * (1 - AFTER), until + length * AFTER];
    const back = Math.max(1, Math.round(this.iterations));
    const anchor = done.length ? done[Math.max(0, done.length - back)].start : 0;
    // A short run is shown from its first iteration; the window keeps its length, so nothing jumps in scale.
    return [anchor - length * BEFORE, anchor + length * (1 + AFTER)];
  }

  pan(share) { this.#set(this.from + share * this.span, this.to + share * this.span); }

  panMs(ms) { this.#set(this.from + ms, this.to + ms); }

  /** Zooms by `factor` (below 1: closer) around the time `about`; a live window stays live. */
  zoom(factor, about = null) {
    const span = Math.max(LEAST_MS, Math.min(this.span * factor, this.#most()));
    const real = span / this.span;
    this.iterations = Math.max(1e-4, this.iterations * real);
    if (this.live && !this.still) { this.follow(); return; }
    const centre = about ?? (this.from + this.to) / 2;
    this.#set(centre - (centre - this.from) * real, centre + (this.to - centre) * real);
  }

  #most() { return Math.max(this.base * 120, 60_000); }

  #set(from, to) {
    this.live = false;
    [this.from, this.to] = [from, to];
  }

  /** Back to the first zoom, at the run's head where live, else around what is shown. */
  reset() {
    this.iterations = this.start;
    if (this.live || this.still) { this.live = true; this.follow(); return; }
    const at = this.model.anchors(this.from, this.to, false)[0]?.start ?? this.from;
    const length = this.base * this.iterations;
    this.#set(at - length * BEFORE, at + length * (1 + AFTER));
  }

  freeze() { this.live = false; }

  /** Stands at [from, to] until told otherwise. */
  show(from, to) {
    this.#set(from, Math.max(to, from + LEAST_MS));
    if (this.base) this.iterations = this.span / (this.base * (1 + BEFORE + AFTER));
  }

  goLive() { this.live = true; this.follow(); }

  /** Moves so that [from, to] can be seen. */
  reveal(from, to) {
    if (from >= this.from && to <= this.to) return;
    const length = this.span, at = (from + to) / 2 - length / 2;
    this.#set(at, at + length);
  }
}

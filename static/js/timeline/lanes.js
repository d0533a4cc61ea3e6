// Paints one lane of ops: bubbles, ops by level of detail, labels, the predicted strip, what is yet to come.
import { OP, OPS } from "../lib/wire.js";
import { blockOf, lastAtOrBefore } from "./blocks.js";
import { eachGap, leastBubble, pieces } from "./gaps.js";

const BUBBLE_FROM_PX = 2;
const LABELS = { [OP.ALL_REDUCE]: "AR", [OP.OPTIMIZER]: "Opt", [OP.CHECKPOINT]: "Copy", [OP.PREFILL]: "P" };

export function labelOf(kind, microbatch) {
  const name = OPS[kind];
  return LABELS[name] ?? `${name}${microbatch + 1}`;
}

/** The level of detail for a scale of px per median F. */
export function levelOf(px) {
  if (px >= 14) return "label";
  if (px >= 4) return "pattern";
  return px >= 1 ? "plain" : "share";
}

/** Vertical places inside a lane row. */
function geometry(row) {
  return row.full ? { top: row.y + 2, height: 14, strip: row.y + 17, stripHeight: 3 } : { top: row.y + 1, height: 8, strip: 0, stripHeight: 0 };
}

/** Paints the ops of a lane, measured or (where only the prediction is shown) predicted, and the bubbles between them. */
export function paintOps(scene, row) {
  const place = geometry(row), { from, to } = scene.view;
  // What is counted as a bubble is shaded, and nothing else.
  const least = Math.max(leastBubble(scene.model), BUBBLE_FROM_PX / scene.scale);
  const shade = (start, end) => bubble(scene, place, start, end);
  for (const piece of pieces(scene, row.lane)) {
    eachGap(piece, leastBubble(scene.model), from, to, (start, end) => { if (end - start >= least) shade(start, end); });
    paintBlock(scene, piece.block, place, piece.shift);
  }
}

function paintBlock(scene, block, place, shift) {
  const { view, level, left, scale } = scene, { start, end, kind, microbatch } = block;
  const columns = new Columns(scene, place), origin = left - (view.from - shift) * scale, until = view.to - shift;
  for (let i = Math.max(0, lastAtOrBefore(start, view.from - shift)); i < block.n && start[i] <= until; i++) {
    const x0 = origin + start[i] * scale, x1 = origin + end[i] * scale;
    if (x1 - x0 < 1) { columns.add(kind[i], x0, x1); continue; }
    columns.flush();
    if (x1 >= left) paintOp(scene, place, level, kind[i], microbatch[i], x0, x1);
  }
  columns.flush();
}

function paintOp(scene, place, level, kind, microbatch, x0, x1) {
  const { batch, style, patterns } = scene;
  // Edges stand on whole device pixels: crisp, and a fraction of the cost. A pixel between neighbours that can afford it.
  const at = scene.snap(x0), width = Math.max(1, scene.snap(x1) - at - (x1 - x0 >= 4 ? 1 : 0));
  if (level === "plain") { batch.add(style.ops[kind], at, place.top, width, place.height); return; }
  batch.add(style.fills[kind], at, place.top, width, place.height);
  if (kind === 2) patterns.add(style.band, at, place.top + place.height - 2, width, 2);
  else if (kind === 3) patterns.add(style.band, at, place.top, width, 2);
  else if (kind === 6) for (const y of [place.top, place.top + place.height - 1]) patterns.add(style.ops[6], at, y, width, 1);
  if (level !== "label" || place.height < 12) return;
  const left = Math.max(at, scene.left), text = labelOf(kind, microbatch);
  if (at + width - left >= scene.textWidth(text) + 3) scene.labels.push(text, (left + at + width) / 2, place.top + 7.5, kind);
}

function bubble(scene, place, from, to) {
  const x0 = scene.snap(Math.max(scene.left, scene.x(from)) + 1), x1 = scene.snap(Math.min(scene.right, scene.x(to)) - 1);
  if (x1 > x0) scene.bubbles.add(place.height >= 12 ? scene.style.bubble : scene.style.t.bubbleFlat, x0, place.top, x1 - x0, place.height);
}

/** Neighbours under one pixel: one column of stacked shares. */
class Columns {
  constructor(scene, place) {
    this.scene = scene;
    this.place = place;
    this.shares = new Float32Array(OPS.length);
    this.pixel = -1;
  }

  add(kind, x0, x1) {
    const pixel = Math.floor(x0);
    if (pixel !== this.pixel) this.flush();
    this.pixel = pixel;
    this.shares[kind] += x1 - x0;
  }

  flush() {
    if (this.pixel < 0) return;
    const { batch, style } = this.scene, total = this.shares.reduce((sum, share) => sum + share, 0);
    let y = this.place.top + this.place.height;
    for (let kind = 0; kind < this.shares.length; kind++) {
      if (!this.shares[kind]) continue;
      const height = (this.shares[kind] / Math.max(total, 1)) * this.place.height;
      y -= height;
      batch.add(style.ops[kind], this.pixel, y, 1, height);
    }
    this.shares.fill(0);
    this.pixel = -1;
  }
}

/** Where a lane draws its loads and, under them, gradients that leave: two thin lines below the ops. */
export const loadPlace = (row, out) => ({ top: row.y + (out ? 19 : 16), height: 2 });

/** Copies between host and GPU while ops run, where the model is swapped; they take the place of the predicted strip. */
export function paintLoads(scene, row) {
  if (!row.full) return;
  for (const { block, shift } of pieces(scene, row.lane)) loadsOf(scene, row, block, shift, scene.style.loads);
}

function loadsOf(scene, row, { loads }, shift, styles) {
  for (let i = 0; i < (loads?.n ?? 0); i++) {
    const x0 = scene.snap(Math.max(scene.left, scene.x(loads.start[i] + shift))), x1 = scene.snap(scene.x(loads.end[i] + shift)), { top, height } = loadPlace(row, loads.out[i]);
    if (x1 >= scene.left && x0 <= scene.right) scene.strips.add(styles[loads.out[i]], x0, top, Math.max(1, x1 - x0), height);
  }
}

/** The predicted strip under measured ops, anchored at the measured start of each iteration. */
export function paintStrip(scene, row) {
  const place = geometry(row);
  if (!place.stripHeight || scene.level === "plain" || scene.level === "share") return;
  for (const anchor of scene.anchors) {
    if (anchor.ahead || !blockOf(scene.model.ops[row.lane], anchor.iteration)) continue;
    const block = scene.model.predictionAt(anchor.iteration).ops[row.lane];
    for (let i = Math.max(0, lastAtOrBefore(block.start, scene.view.from - anchor.start)); i < block.n; i++) {
      const x0 = scene.snap(scene.x(block.start[i] + anchor.start));
      if (x0 > scene.right) break;
      const width = scene.snap(scene.x(block.end[i] + anchor.start)) - x0;
      scene.strips.add(scene.style.strip[block.kind[i]], x0, place.strip, Math.max(1, width >= 4 ? width - 1 : width), place.stripHeight);
    }
  }
}

/** What is predicted for iterations of which this lane has reported nothing yet: pale, with an edge. */
export function paintAhead(scene, row) {
  if (scene.level === "share") return;
  const place = geometry(row), blocks = scene.model.ops[row.lane];
  const reported = blocks.length ? blocks[blocks.length - 1].iteration : -1;
  for (const anchor of scene.anchors) {
    if (anchor.iteration <= reported) continue;
    const block = scene.model.predictionAt(anchor.iteration).ops[row.lane];
    if (row.full) loadsOf(scene, row, block, anchor.start, scene.style.loadsAhead);
    for (let i = Math.max(0, lastAtOrBefore(block.start, scene.view.from - anchor.start)); i < block.n; i++) {
      const x0 = scene.snap(scene.x(block.start[i] + anchor.start));
      if (x0 > scene.right) break;
      const width = Math.max(1, scene.snap(scene.x(block.end[i] + anchor.start)) - x0);
      scene.batch.add(scene.style.ghost[block.kind[i]], x0, place.top, width, place.height);
      if (width >= 4 && row.full) scene.edges.add(scene.style.strip[block.kind[i]], x0, place.top, width, place.height);
    }
  }
}

/** Coverage of a row in the iterations that can be seen: [coverage, what its times are short of ours, start, end, pale], in ms since the epoch. */
function* coverages(scene, row) {
  const { model, mode, coverage } = scene;
  for (const anchor of scene.anchors) {
    const measured = mode === "predicted" ? null : coverage.get(model, row.key, row.lanes, anchor);
    if (measured) yield [measured, 0, anchor.start, measured.end, false];
    else if (mode !== "measured" && model.predictedMs) {
      const prediction = model.predictionAt(anchor.iteration);
      yield [coverage.predicted(prediction, row.key, row.lanes), anchor.start, anchor.start, anchor.start + prediction.ms, mode === "both"];
    }
  }
}

/** Utilization per pixel: bars that stand for the share of the pixel's time that was busy; pale where only predicted. */
export function paintShares(scene, row) {
  const place = geometry(row), { t } = scene.style;
  for (const [coverage, shift, start, end, pale] of coverages(scene, row)) {
    const x0 = Math.max(scene.left, Math.floor(scene.x(start))), n = Math.ceil(Math.min(scene.right, scene.x(end)) - x0);
    const shares = sharesOf(scene, coverage, x0, n, shift);
    for (let i = 0; i < n; i++) {
      const height = shares[i] * place.height;
      if (height > 0.2) scene.shades.add(pale ? t.rule2 : t.ink3, x0 + i, place.top + place.height - height, 1, height);
    }
  }
}

/** A row that stands for many GPUs: one shade per pixel; what is only predicted is a third as high. */
export function paintHeat(scene, row) {
  for (const [coverage, shift, start, end, pale] of coverages(scene, row)) {
    const x0 = Math.max(scene.left, Math.floor(scene.x(start))), n = Math.min(scene.right, Math.ceil(scene.x(end))) - x0;
    const [top, height] = pale ? [row.y + row.height - 5, 4] : [row.y + 1, row.height - 2];
    const shares = sharesOf(scene, coverage, x0, n, shift);
    // 16 shades are as many as an eye tells apart, and equal neighbours become one rectangle.
    let from = 0;
    for (let i = 1; i <= n; i++) {
      const shade = Math.round(shares[from] * 16);
      if (i < n && Math.round(shares[i] * 16) === shade) continue;
      scene.shades.add(scene.style.heat(shade / 16), x0 + from, top, i - from, height);
      from = i;
    }
  }
}

let room = new Float32Array(4_096);

function sharesOf(scene, coverage, x0, n, shift) {
  if (n > room.length) room = new Float32Array(2 * n);
  if (n > 0) coverage.shares(room, n, scene.time(x0) - shift, 1 / scene.scale);
  return room;
}

// One frame of the timeline: builds the scene, lets each part paint itself, and says what it drew.
import { CoverageCache } from "./coverage.js";
import { paintGutter } from "./gutter.js";
import { label, paintAxis, paintMinimap } from "./head.js";
import { levelOf, paintAhead, paintHeat, paintLoads, paintOps, paintShares, paintStrip } from "./lanes.js";
import { paintLink, strokeChevrons } from "./links.js";
import { paintMarks } from "./marks.js";
import { RectBatch } from "./paint.js";
import { rowsBetween } from "./rows.js";
import { AXIS, MINIMAP } from "./sizes.js";
import { usageFor } from "./usage.js";
import { count, duration, span } from "../lib/format.js";

const GUTTER = 172, GUTTER_NARROW = 74, NARROW_BELOW = 560;

export class Painter {
  constructor(model, options = {}) {
    this.model = model;
    this.options = options;
    this.coverage = new CoverageCache();
    this.widths = new Map();
  }

  get headHeight() { return (this.options.minimap === false ? 0 : MINIMAP + 2) + AXIS; }

  /** Everything that painting and hit tests of one frame share. */
  scene({ view, mode, width, height, scroll, style, layout, now }) {
    const narrow = width < NARROW_BELOW, left = narrow ? GUTTER_NARROW : GUTTER, model = this.model;
    const scale = (width - left) / view.span, predicted = mode === "predicted";
    const anchors = this.options.still ? [{ iteration: 0, start: 0, end: model.predictedMs }] : model.anchors(view.from, view.to, mode !== "measured" && !this.options.ended);
    const shown = anchors.find((a) => a.start >= view.from - 0.5 / scale) ?? anchors[0];
    const reached = predicted ? 0 : model.frontier;
    return {
      ended: Boolean(this.options.ended), model, view, mode, width, height, scroll, style, layout, narrow, left, right: width, anchors, reached, now,
      head: this.headHeight, end: this.options.still ? model.predictedMs : null, zero: shown?.start ?? 0, shown: shown?.iteration ?? null,
      level: levelOf(model.medianForward * scale), longest: model.predictedMs || model.typicalMs, coverage: this.coverage,
      usage: usageFor(model, this.options.still ? "predicted" : mode),
      scale, snap: (x) => Math.round(x * style.ratio) / style.ratio, x: (time) => left + (time - view.from) * scale, time: (x) => view.from + (x - left) / scale,
      batch: new RectBatch(), patterns: new RectBatch(), edges: new RectBatch(), bubbles: new RectBatch(), shades: new RectBatch(), strips: new RectBatch(),
      labels: [], chevrons: [], ticks: [], textWidth: (text) => this.#textWidth(text, style), ...this.#nowText(now - reached, style),
    };
  }

  // What stands at the last measured span, and how wide it is in its bolder type.
  #nowText(lateMs, style) {
    const { model } = this, calm = Math.max(2_000, 2 * (model.predictedMs || model.typicalMs));
    const nowText = this.options.ended ? "end" : lateMs <= calm ? "now" : `last span, ${span(lateMs / 1_000)} ago`;
    return { nowText, nowWidth: this.#textWidth(nowText.replace(/\d/g, "0"), style) * 1.1 };
  }

  #textWidth(text, style) {
    if (!this.widths.has(text)) {
      this.measure ??= document.createElement("canvas").getContext("2d");
      this.measure.font = style.font(11);
      this.widths.set(text, this.measure.measureText(text).width);
    }
    return this.widths.get(text);
  }

  paint(context, scene) {
    const { style, width, height, head } = scene;
    context.setTransform(style.ratio, 0, 0, style.ratio, 0, 0);
    context.fillStyle = style.t.bg;
    context.fillRect(0, 0, width, height);
    if (this.options.minimap !== false) paintMinimap(context, scene);
    paintAxis(context, scene, head - AXIS);
    context.save();
    context.beginPath();
    context.rect(0, head, width, height - head);
    context.clip();
    context.translate(0, head - scene.scroll);
    this.#rows(context, scene);
    context.restore();
    this.#iterationNumbers(context, scene);
    if (!this.options.still) paintMarks(context, scene);
    if (scene.reached && !this.options.still) nowLine(context, scene);
    if (this.options.still) endLine(context, scene);
  }

  #rows(context, scene) {
    const { style, layout, scroll, left, width } = scene, bottom = scroll + scene.height - scene.head;
    const [first, end] = rowsBetween(layout.rows, scroll, bottom);
    const visible = layout.rows.slice(first, end);
    for (const row of visible) paintGutter(context, scene, row);
    context.save();
    context.beginPath();
    context.rect(left, scroll, width - left, bottom - scroll);
    context.clip();
    context.fillStyle = style.t.grid;
    for (const x of scene.ticks) context.fillRect(Math.round(x), scroll, 1, bottom - scroll);
    for (const row of visible) paintRow(scene, row);
    scene.shades.fill(context);
    scene.bubbles.fillPaths(context);
    scene.batch.fillPaths(context);
    scene.strips.fill(context);
    scene.patterns.fillPaths(context);
    scene.edges.stroke(context);
    strokeChevrons(context, scene);
    labels(context, scene);
    starts(context, scene, scroll, bottom);
    context.restore();
  }

  #iterationNumbers(context, scene) {
    if (this.options.still) return;
    const { style, left, right } = scene;
    let free = left;
    for (const anchor of scene.anchors) {
      const x = scene.x(anchor.start);
      if (x < left - 1 || x > right - 30 || x < free) continue;
      const text = (free === left ? "Iteration " : "") + count(anchor.iteration + 1) + (anchor.ahead && free === left ? ", predicted" : "");
      context.font = style.font(11);
      const width = context.measureText(text).width;
      if (x + width + 6 > right) continue;
      context.fillStyle = style.t.bg;
      context.fillRect(x + 4, scene.head + 2, width + 4, 15);
      label(context, style, text, x + 6, scene.head + 14, anchor.ahead ? style.t.ink3 : style.t.ink2);
      free = x + width + 16;
    }
  }
}

function paintRow(scene, row) {
  if (row.kind === "link") paintLink(scene, row);
  else if (row.kind === "heat") paintHeat(scene, row);
  if (row.kind !== "lane") return;
  if (scene.level === "share") paintShares(scene, row);
  else {
    paintOps(scene, row);
    if (scene.model.lanes[row.lane].worker) paintLoads(scene, row);
    else if (scene.mode === "both") paintStrip(scene, row);
    if (scene.mode === "both") paintAhead(scene, row);
  }
}

function labels(context, scene) {
  context.font = scene.style.font(11);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = 0; i < scene.labels.length; i += 4) {
    const kind = scene.labels[i + 3];
    if (kind === 4 || kind === 1) plate(context, scene, i, kind);
    context.fillStyle = scene.style.t.opLabel;
    context.fillText(scene.labels[i], scene.labels[i + 1], scene.labels[i + 2] + 0.5);
  }
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
}

// On a pattern the label gets a plain ground, or its contrast is gone.
function plate(context, scene, i, kind) {
  const width = scene.textWidth(scene.labels[i]) + 4;
  context.fillStyle = scene.style.ops[kind];
  context.fillRect(scene.labels[i + 1] - width / 2, scene.labels[i + 2] - 6, width, 12);
}

function starts(context, scene, top, bottom) {
  context.strokeStyle = scene.style.t.ink3;
  context.lineWidth = 1;
  context.setLineDash([1, 3]);
  context.beginPath();
  for (const anchor of scene.anchors) {
    const x = Math.round(scene.x(anchor.start)) + 0.5;
    if (x > scene.left && x < scene.right) { context.moveTo(x, top); context.lineTo(x, bottom); }
  }
  context.stroke();
  context.setLineDash([]);
}

function nowLine(context, scene) {
  const { style, head } = scene, x = Math.round(scene.x(scene.reached));
  if (x < scene.left || x > scene.right) return;
  const colour = scene.ended ? style.t.ink2 : style.t.ok;
  context.fillStyle = colour;
  context.fillRect(x - 0.5, head - AXIS + 2, 1.5, scene.height - head + AXIS);
  const text = scene.nowText, room = scene.right - x > scene.nowWidth + 8;
  context.textAlign = room ? "left" : "right";
  label(context, style, text, x + (room ? 5 : -5), head - AXIS + 15, colour, 11, 620);
  context.textAlign = "left";
}

function endLine(context, scene) {
  const x = Math.round(scene.x(scene.model.predictedMs));
  if (x < scene.left || x > scene.right) return;
  context.fillStyle = scene.style.t.ink;
  context.fillRect(x, scene.head - 8, 1, scene.height - scene.head + 8);
  context.textAlign = "right";
  label(context, scene.style, duration(scene.model.predictedMs, scene.model.unit).join(" "), x + 4, scene.head - AXIS + 15, scene.style.t.ink, 11, 620);
  context.textAlign = "left";
}

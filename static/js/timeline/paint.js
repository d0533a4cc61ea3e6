// Colours and patterns of ops, and a batch that fills rectangles one style at a time.
import { OP, OPS } from "../lib/wire.js";
import { heatRamp, readTokens, withAlpha } from "../lib/tokens.js";

const RECOMPUTE = OPS.indexOf(OP.R), ALL_REDUCE = OPS.indexOf(OP.ALL_REDUCE), PREFILL = OPS.indexOf(OP.PREFILL);
const TILE = { recompute: 6, allReduce: 3, prefill: 4, bubble: 6 };

/** What is needed to paint under the present theme and pixel ratio. */
export function makeStyle(ratio) {
  const t = readTokens();
  const ops = [t.opF, t.opR, t.opB, t.opW, t.opA, t.opA, t.opP, t.opA];
  return {
    t, ratio, ops,
    heat: heatRamp(t),
    strip: ops.map((colour) => withAlpha(colour, 0.42)),
    ghost: ops.map((colour) => withAlpha(colour, 0.2)),
    transfer: [withAlpha(t.opF, 0.32), withAlpha(t.opB, 0.32)],
    transferEdge: [t.opF, t.opB],
    loads: [t.opF, t.opB],
    loadsAhead: [withAlpha(t.opF, 0.42), withAlpha(t.opB, 0.42)],
    band: withAlpha(t.opLabel, 0.55),
    // What an op is filled with where patterns show: ground and pattern in one.
    fills: ops.map((colour, kind) => (kind === RECOMPUTE ? diagonal(TILE.recompute, withAlpha(t.opLabel, 0.5), 1, ratio, colour) : kind === ALL_REDUCE ? level(TILE.allReduce, withAlpha(t.opLabel, 0.45), ratio, colour) : kind === PREFILL ? dots(TILE.prefill, colour, ratio, withAlpha(colour, 0.3)) : colour)),
    bubble: diagonal(TILE.bubble, t.bubbleLine, 1, ratio),
    font: (size, weight = 400) => `${weight} ${size}px ${t.family}`,
  };
}

function tile(size, ratio, draw) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.max(1, Math.round(size * ratio));
  const context = canvas.getContext("2d");
  context.scale(canvas.width / size, canvas.height / size);
  draw(context);
  const pattern = context.createPattern(canvas, "repeat");
  pattern.setTransform(new DOMMatrix().scale(size / canvas.width));
  return pattern;
}

// 45° lines that go on from tile to tile.
function diagonal(size, colour, width, ratio, ground = null) {
  return tile(size, ratio, (context) => {
    if (ground) { context.fillStyle = ground; context.fillRect(0, 0, size, size); }
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    for (const shift of [-size, 0, size]) { context.moveTo(shift - 1, size + 1); context.lineTo(shift + size + 1, -1); }
    context.stroke();
  });
}

function level(size, colour, ratio, ground) {
  return tile(size, ratio, (context) => {
    context.fillStyle = ground;
    context.fillRect(0, 0, size, size);
    context.fillStyle = colour;
    context.fillRect(0, 1, size, 1);
  });
}

// Prefill stays behind training: a light ground with dots.
function dots(size, colour, ratio, ground) {
  return tile(size, ratio, (context) => {
    context.fillStyle = ground;
    context.fillRect(0, 0, size, size);
    context.fillStyle = colour;
    context.fillRect(1, 1, 1, 1);
  });
}

const PER_PATH = 400;

function fillPath(context, list, from, to) {
  context.beginPath();
  for (let i = from; i < to; i += 4) context.rect(list[i], list[i + 1], list[i + 2], list[i + 3]);
  context.fill();
}

/** Rectangles by style: thousands of them cost one change of style each kind. */
export class RectBatch {
  #lists = new Map();

  add(style, x, y, width, height) {
    let list = this.#lists.get(style);
    if (!list) this.#lists.set(style, (list = []));
    list.push(x, y, width, height);
  }

  /** For thousands of narrow neighbours in few rows. */
  fill(context) {
    for (const [style, list] of this.#lists) {
      context.fillStyle = style;
      for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
    }
    this.#lists.clear();
  }

  /** For rectangles that stand apart: one path of many costs a sixth of as many fills with a pattern, two thirds of plain ones. */
  fillPaths(context) {
    for (const [style, list] of this.#lists) {
      context.fillStyle = style;
      for (let from = 0; from < list.length; from += 4 * PER_PATH) fillPath(context, list, from, Math.min(list.length, from + 4 * PER_PATH));
    }
    this.#lists.clear();
  }

  stroke(context) {
    context.lineWidth = 1;
    for (const [style, list] of this.#lists) {
      context.strokeStyle = style;
      for (let i = 0; i < list.length; i += 4) context.strokeRect(list[i] + 0.5, list[i + 1] + 0.5, list[i + 2] - 1, list[i + 3] - 1);
    }
    this.#lists.clear();
  }
}

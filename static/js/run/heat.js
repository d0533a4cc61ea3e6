// Utilization per GPU over the iterations that the page holds: one row a GPU, grouped by DC, one slate ramp.
import { count } from "../lib/format.js";
import { heatRamp, readTokens } from "../lib/tokens.js";
import { laneName } from "../timeline/gutter.js";
import { isWhole } from "../timeline/model.js";

const ROW = 12, LOW_ROW = 9, FEW_ROWS = 24, GAP = 6, LEFT = 54, AXIS = 18, MOST_ROWS = 64;

export class Heat {
  constructor(canvas, model) {
    this.canvas = canvas;
    this.model = model;
    document.addEventListener("meridian:theme", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(canvas.parentElement);
  }

  paint() {
    const { model, canvas } = this, width = canvas.parentElement.clientWidth, ratio = devicePixelRatio || 1;
    const lanes = model.lanes.map((_, i) => i).sort((x, y) => model.lanes[x].dc - model.lanes[y].dc || model.lanes[x].stage - model.lanes[y].stage || x - y).slice(0, MOST_ROWS);
    const known = model.iterations.some(isWhole) && model.hasSpans;
    canvas.hidden = !known;
    canvas.parentElement.querySelector("[data-none]").hidden = known;
    if (!width || !lanes.length || !known) return;
    const tokens = readTokens(), heat = heatRamp(tokens), context = canvas.getContext("2d");
    // Low rows have no room for a name each.
    const rowHigh = lanes.length > FEW_ROWS ? LOW_ROW : ROW, named = lanes.length > FEW_ROWS ? 2 : 1;
    const dcs = new Set(lanes.map((i) => model.lanes[i].dc)).size, height = lanes.length * rowHigh + (dcs - 1) * GAP + AXIS;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    // Only the iterations whose spans the page holds: what is not known is not drawn as idle.
    const held = Math.min(...model.ops.map((blocks) => blocks[0]?.iteration ?? Infinity));
    const numbers = model.iterations.filter((it) => isWhole(it) && it.iteration >= held).slice(-200);
    const from = numbers[0]?.start ?? 0, to = numbers.at(-1)?.end ?? 1, scale = (width - LEFT) / Math.max(1, to - from);
    let y = 0, dc = null;
    for (const [row, i] of lanes.entries()) {
      if (dc !== null && dc !== model.lanes[i].dc) y += GAP;
      dc = model.lanes[i].dc;
      context.font = `400 10px ${tokens.family}`;
      context.fillStyle = tokens.ink3;
      if (row % named === 0) context.fillText(laneName(model.lanes[i]), 0, y + rowHigh - 2);
      context.fillStyle = tokens.heat0;
      context.fillRect(LEFT, y, width - LEFT, rowHigh - 1);
      for (const block of model.ops[i]) {
        const start = model.startOf(block.iteration), end = model.endOf(block.iteration);
        if (start === null || end === null || end < from) continue;
        context.fillStyle = heat(block.busy / (end - start));
        context.fillRect(LEFT + (start - from) * scale, y, Math.max(1, (end - start) * scale), rowHigh - 1);
      }
      y += rowHigh;
    }
    axis(context, tokens, width, y, to - from, lanes.length < model.lanes.length ? `${lanes.length} of ${count(model.lanes.length)} GPUs` : "");
  }
}

function axis(context, tokens, width, y, ms, shown) {
  context.font = `400 11px ${tokens.family}`;
  context.fillStyle = tokens.ink3;
  context.fillText(ms > 120_000 ? `−${(ms / 60_000).toFixed(0)} min` : `−${(ms / 1000).toFixed(0)} s`, LEFT, y + 14);
  context.textAlign = "right";
  context.fillText("last iteration", width, y + 14);
  context.textAlign = "center";
  context.fillText(shown, (LEFT + width) / 2, y + 14);
  context.textAlign = "left";
}

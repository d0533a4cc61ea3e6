// Paints the minimap and the time axis.
import { fixed } from "../lib/format.js";
import { paintMinimapMarks } from "./marks.js";
import { AXIS, MINIMAP } from "./sizes.js";

const RECENT_MS = 60_000;

/** A round step of time so that ticks stand at least `least` px apart. */
export function tickStep(msPerPx, least) {
  const rough = msPerPx * least, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * power).find((step) => step >= rough);
}

/** What the minimap spans: the last 60 s of the run. */
export function recent(model, now) {
  const until = Math.max(now, 1);
  return [Math.max(until - RECENT_MS, Math.min(0, until - RECENT_MS)), until];
}

export function paintMinimap(context, scene) {
  const { model, style, left, right } = scene, [from, to] = recent(model, scene.now);
  const scale = (right - left) / (to - from), x = (time) => left + (time - from) * scale;
  label(context, style, scene.narrow ? "60 s" : "last 60 s", 0, MINIMAP / 2 + 4, style.t.ink3);
  context.fillStyle = style.t.rule2;
  for (let i = model.iterations.length - 1; i >= 0; i--) {
    const it = model.iterations[i];
    if (it.start == null || it.end == null) continue;
    if (it.end < from) break;
    const share = it.utilization ?? 0, x0 = Math.max(left, x(it.start)), width = Math.max(1, x(it.end) - x0 - (it.end - it.start > 3 / scale ? 1 : 0));
    context.fillRect(x0, MINIMAP - share * MINIMAP, width, share * MINIMAP);
  }
  paintMinimapMarks(context, scene, x);
  context.fillStyle = style.t.grid;
  context.fillRect(left, MINIMAP, right - left, 1);
  const x0 = Math.max(left, x(scene.view.from)), x1 = Math.min(right, Math.max(x0 + 6, x(scene.view.to)));
  if (x1 <= left || x0 >= right + 6) return;
  context.strokeStyle = style.t.ink;
  context.lineWidth = 1.5;
  context.strokeRect(Math.min(x0, right - 6) + 0.75, 0.75, Math.max(5, x1 - x0) - 1.5, MINIMAP - 1.5);
}

/** Ticks count from the start of the shown iteration. */
export function paintAxis(context, scene, top) {
  const { style, view, left, right } = scene, foot = top + AXIS;
  const step = tickStep(view.span / (right - left), scene.narrow ? 44 : 56), { unit } = scene.model, inSeconds = unit === "ms" && (step >= 1000 || scene.longest >= 10_000);
  const decimals = inSeconds ? Math.max(0, -Math.floor(Math.log10(step / 1000) + 1e-9)) : Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  context.font = style.font(11);
  context.textAlign = "center";
  for (let n = Math.ceil((view.from - scene.zero) / step); ; n++) {
    const x = scene.x(scene.zero + n * step);
    if (x > right) break;
    if (x < left) continue;
    scene.ticks.push(x);
    const text = fixed(inSeconds ? (n * step) / 1000 : n * step, decimals) + (n === 0 ? ` ${inSeconds ? "s" : unit}` : "");
    const half = context.measureText(text).width / 2;
    if (x + half > right || nearNow(scene, x, half)) continue;
    context.fillStyle = style.t.ink3;
    context.fillText(text, x, top + 15);
  }
  context.textAlign = "left";
  context.fillStyle = style.t.rule2;
  context.fillRect(0, foot - 1, right, 1);
}

function nearNow(scene, x, half) {
  const end = scene.end === null ? null : scene.x(scene.end);
  if (end !== null && x + half > end - 62 && x - half < end + 8) return true;
  if (!scene.reached) return false;
  const at = scene.x(scene.reached), wide = scene.nowWidth + 8, right = scene.right - at > wide;
  return x + half > (right ? at - 2 : at - wide) && x - half < (right ? at + wide : at + 2);
}

export function label(context, style, text, x, y, colour, size = 11, weight = 400) {
  context.font = style.font(size, weight);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

// State changes and faults as marks on the time axis: a diamond and a line for faults, a circle for the rest.
import { LEVEL } from "../lib/wire.js";
import { AXIS, MINIMAP } from "./sizes.js";

const REACH_PX = 7;

/** Marks whose time is in the window, oldest first: {seq, time (ms since the epoch), level, text}. */
export function marksIn(scene) {
  return scene.model.marks.filter((mark) => mark.time >= scene.view.from && mark.time <= scene.view.to);
}

const colourOf = (t, level) => ({ [LEVEL.ERROR]: t.err, [LEVEL.WARN]: t.warn })[level] ?? t.ink2;

export function paintMarks(context, scene) {
  const { style, head, left } = scene, y = head - 5;
  for (const mark of marksIn(scene)) {
    const x = Math.round(scene.x(mark.time)) + 0.5;
    if (x < left) continue;
    const colour = colourOf(style.t, mark.level);
    if (mark.level === LEVEL.ERROR) { context.fillStyle = colour; context.fillRect(x - 0.5, head, 1, scene.height - head); }
    shape(context, style, mark.level, x, y, colour);
  }
}

// Level by shape as well as by colour: a filled diamond, a ring with a ground, a ring.
function shape(context, style, level, x, y, colour) {
  context.beginPath();
  if (level === LEVEL.ERROR) { context.moveTo(x, y - 5); context.lineTo(x + 5, y); context.lineTo(x, y + 5); context.lineTo(x - 5, y); context.closePath(); }
  else context.arc(x, y, level === LEVEL.WARN ? 4 : 3, 0, 2 * Math.PI);
  context.fillStyle = level === LEVEL.ERROR ? colour : style.t.bg;
  context.fill();
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.stroke();
  if (level === LEVEL.WARN) { context.fillStyle = colour; context.fillRect(x - 0.5, y - 2, 1, 4); }
}

/** Faults and warnings as lines on the minimap. */
export function paintMinimapMarks(context, scene, x) {
  for (const mark of scene.model.marks) {
    const at = x(mark.time);
    if (mark.level === LEVEL.INFO || at < scene.left || at > scene.right) continue;
    context.fillStyle = colourOf(scene.style.t, mark.level);
    context.fillRect(Math.round(at), 0, 1, MINIMAP);
  }
}

/** The marks under a point of the axis, as one item, or null. */
export function markAt(scene, x, y) {
  if (y < scene.head - AXIS || y > scene.head + 4) return null;
  const near = marksIn(scene).filter((mark) => Math.abs(scene.x(mark.time) - x) <= REACH_PX);
  if (!near.length) return null;
  near.sort((a, b) => Math.abs(scene.x(a.time) - x) - Math.abs(scene.x(b.time) - x));
  return { type: "mark", marks: near, start: near[0].time, end: near[0].time };
}

/** The first mark after `time`, or the first of all, as an item; null where there is none. */
export function markAfter(model, time) {
  const mark = model.marks.find((m) => m.time > time + 1e-6) ?? model.marks[0];
  return mark ? { type: "mark", marks: [mark], start: mark.time, end: mark.time } : null;
}

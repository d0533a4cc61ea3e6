// What follows the pointer and the focus: cursor line with its time, outlines, the line to what an op waited for.
import { instant } from "../lib/format.js";
import { loadPlace } from "./lanes.js";
import { hopOf, rowPlace } from "./links.js";
import { AXIS } from "./sizes.js";

export function paintOverlay(context, scene, { cursorX, item, need }) {
  const { style, width, height } = scene;
  context.setTransform(style.ratio, 0, 0, style.ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  if (item && hasBox(item)) outlines(context, scene, item, need);
  if (cursorX !== null && cursorX >= scene.left) cursor(context, scene, cursorX);
}

function cursor(context, scene, x) {
  const { style, head, height } = scene, text = instant(scene.time(x) - scene.zero, scene.model.unit);
  context.fillStyle = style.t.ink;
  context.fillRect(Math.round(x), head - 2, 1, height - head + 2);
  context.font = style.font(11, 550);
  const wide = context.measureText(text).width + 12, at = Math.min(Math.max(x - wide / 2, 0), scene.right - wide);
  context.beginPath();
  context.roundRect(at, head - AXIS + 2, wide, 18, 3);
  context.fill();
  context.fillStyle = style.t.bg;
  context.fillText(text, at + 6, head - AXIS + 15);
}

function outlines(context, scene, item, need) {
  context.save();
  context.beginPath();
  context.rect(scene.left, scene.head, scene.right - scene.left, scene.height - scene.head);
  context.clip();
  context.strokeStyle = scene.style.t.ink;
  context.lineWidth = 1.5;
  const boxes = [item, need?.transfer, need?.item].filter(Boolean).map((it) => boxOf(scene, it)).filter(Boolean);
  for (const box of boxes) context.strokeRect(box.x - 0.75, box.y - 0.75, box.width + 1.5, box.height + 1.5);
  for (let i = 1; i < boxes.length; i++) connect(context, boxes[i], boxes[i - 1]);
  context.restore();
}

// From the end of what was needed to the start of what needed it, by right angles.
function connect(context, from, to) {
  const x0 = from.x + from.width, y0 = from.y + from.height / 2, y1 = to.y + to.height / 2;
  const down = y1 > y0;
  context.beginPath();
  context.moveTo(x0, down ? from.y + from.height : from.y);
  const turn = down ? to.y - 3 : to.y + to.height + 3;
  if (Math.abs(to.x - x0) > 1.5) { context.lineTo(x0, turn); context.lineTo(to.x, turn); }
  context.lineTo(to.x, down ? to.y : to.y + to.height);
  context.stroke();
}

/** Ops, transfers and bubbles have a place on the lanes; rows and marks are only told of. */
export const hasBox = (item) => ["op", "transfer", "bubble", "load"].includes(item.type);

/** Where an item stands on the canvas, or null where its row is not there. */
export function boxOf(scene, item) {
  const row = scene.layout.rows.find((r) => (item.type === "transfer"
    ? r.kind === "link" && r.link === item.link && (r.pipeline === null || r.pipeline === item.pipeline) && (r.stage === null || r.stage === hopOf(item.fromStage, item.toStage))
    : r.kind === "lane" && r.lane === item.lane));
  if (!row) return null;
  const x = scene.x(item.start), width = Math.max(1, scene.x(item.end) - x), lift = scene.head - scene.scroll;
  if (item.type === "transfer") {
    const place = rowPlace(row, row.split > 1 ? item.pipeline % row.split : 0);
    return { x, width, y: place.top + lift, height: place.height };
  }
  if (item.type === "load") return { x, width, y: loadPlace(row, item.gradient).top + lift, height: 2 };
  return { x, width, y: row.y + (row.full ? 2 : 1) + lift, height: row.full ? 14 : 8 };
}

// Paints link lanes: transfers between two DCs, 32 % fill with an edge and chevrons in the direction of travel.
import { lastAtOrBefore } from "./blocks.js";

export function rowPlace(row, slot) {
  if (row.split > 1) return { top: row.y + 2 + 5 * slot, height: 4, strip: 0 };
  return { top: row.y + 2, height: 7, strip: row.y + 10 };
}

/** The lanes that send on a link row, with the slot that each takes; `sent` is that of the model, or of a prediction. */
function senders(model, row, sent = model.sent) {
  const byLane = sent.get(row.link) ?? new Map();
  const list = [...byLane].filter(([lane]) => (row.pipeline === null || model.lanes[lane].pipeline === row.pipeline) && belongs(model.lanes[lane], row));
  return list.map(([lane, blocks]) => ({ lane, blocks, slot: row.split > 1 ? model.lanes[lane].pipeline % row.split : 0 }));
}

/** The blocks of a link row as drawn: [{lane, slot, block, shift (ms to add), iteration}]. */
export function sentOn(scene, row) {
  const { model, anchors } = scene;
  if (scene.mode !== "predicted") {
    return senders(model, row).flatMap(({ lane, blocks, slot }) => blocks.map((block) => ({ lane, slot, block, shift: 0, iteration: block.iteration })));
  }
  return anchors.flatMap(({ start, iteration }) => senders(model, row, model.predictionAt(iteration).sent).map(({ lane, blocks, slot }) => ({ lane, slot, block: blocks, shift: start, iteration })));
}

// In a row between two stages the sender is one of them.
const belongs = (lane, row) => row.stage === null || lane.stage === row.stage || lane.stage === row.stage + 1;

/** The stage whose link row (of rows by stage) shows a transfer: the earlier of the two, the sender on a loop's hop back. */
export const hopOf = (from, to) => (Math.abs(from - to) === 1 ? Math.min(from, to) : from);

/** Whether transfer `i` of a block belongs to a link row. */
export const shows = (row, block, i) => row.stage === null || hopOf(block.fromStage, block.toStage[i]) === row.stage;

export function paintLink(scene, row) {
  const { model, view, mode } = scene, drawn = mode === "predicted";
  if (!drawn) {
    for (const { blocks, slot } of senders(model, row)) {
      for (const block of blocks) {
        if (block.last >= view.from && block.first <= view.to) transfers(scene, block, row, slot, 0);
      }
    }
  }
  if (mode === "measured") return;
  for (const anchor of scene.anchors) {
    for (const { lane, blocks: block, slot } of senders(model, row, model.predictionAt(anchor.iteration).sent)) {
      const reported = model.ops[lane].at(-1)?.iteration ?? -1;
      if (drawn) transfers(scene, block, row, slot, anchor.start);
      else strip(scene, block, row, slot, anchor, anchor.iteration > reported);
    }
  }
}

function transfers(scene, block, row, slot, shift) {
  const place = rowPlace(row, slot);
  for (let i = Math.max(0, lastAtOrBefore(block.start, scene.view.from - shift)); i < block.n; i++) {
    const start = block.start[i] + shift;
    if (start > scene.view.to) break;
    if (!shows(row, block, i)) continue;
    const x0 = scene.x(start), width = Math.max(1, scene.x(block.end[i] + shift) - x0), gradient = block.gradient[i];
    scene.batch.add(width < 3 ? scene.style.transferEdge[gradient] : scene.style.transfer[gradient], x0, place.top, width, place.height);
    if (width < 3) continue;
    scene.edges.add(scene.style.transferEdge[gradient], x0, place.top, width, place.height);
    if (width >= 9 && place.height >= 6) scene.chevrons.push(x0, place.top, width, place.height, gradient);
  }
}

function strip(scene, block, row, slot, anchor, ahead) {
  const place = rowPlace(row, slot);
  if (!place.strip && !ahead) return;
  if (scene.level === "plain" || scene.level === "share") return;
  for (let i = Math.max(0, lastAtOrBefore(block.start, scene.view.from - anchor.start)); i < block.n; i++) {
    const x0 = scene.x(block.start[i] + anchor.start);
    if (x0 > scene.right) break;
    if (!shows(row, block, i)) continue;
    const width = Math.max(1, scene.x(block.end[i] + anchor.start) - x0), kind = block.gradient[i] ? 2 : 0;
    if (place.strip) scene.batch.add(scene.style.strip[kind], x0, place.strip, width >= 4 ? width - 1 : width, 2);
    if (ahead) {
      scene.batch.add(scene.style.ghost[kind], x0, place.top, width, place.height);
      if (width >= 4) scene.edges.add(scene.style.strip[kind], x0, place.top, width, place.height);
    }
  }
}

/** All chevrons of one payload in one path. */
export function strokeChevrons(context, scene) {
  for (const gradient of [0, 1]) {
    context.beginPath();
    for (let i = 0; i < scene.chevrons.length; i += 5) {
      if (scene.chevrons[i + 4] !== gradient) continue;
      chevrons(context, scene.chevrons[i], scene.chevrons[i + 1], scene.chevrons[i + 2], scene.chevrons[i + 3], gradient, scene);
    }
    context.strokeStyle = scene.style.transferEdge[gradient];
    context.lineWidth = 1.2;
    context.stroke();
  }
}

function chevrons(context, x, y, width, height, gradient, scene) {
  const step = 7, depth = 2.2, top = y + 1.6, middle = y + height / 2, foot = y + height - 1.6;
  const from = Math.max(x + 4, scene.left - step), to = Math.min(x + width - 3, scene.right + step);
  for (let at = from + ((x + 4 - from) % step); at <= to; at += step) {
    const tip = gradient ? at - depth : at + depth;
    context.moveTo(at, top);
    context.lineTo(tip, middle);
    context.lineTo(at, foot);
  }
}

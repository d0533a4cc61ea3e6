// Paints what stands left of the lanes: DC heads, GPU names and how busy they were.
import { percent } from "../lib/format.js";
import { label } from "./head.js";

/** @returns {string} e.g. "P1 S2", or "W1" of a worker that swaps, 1-based for people */
export const laneName = (lane) => (lane.worker ? `W${lane.pipeline + 1}` : `P${lane.pipeline + 1} S${lane.stage + 1}`);

export function paintGutter(context, scene, row) {
  if (row.kind === "head") head(context, scene, row);
  else if (row.kind === "lane") lane(context, scene, row);
  else if (row.kind === "heat") heat(context, scene, row);
  else if (row.kind === "link") link(context, scene, row);
  else if (row.kind === "rule") rule(context, scene, row.y);
}

function rule(context, scene, y) {
  context.fillStyle = scene.style.t.rule;
  context.fillRect(0, Math.round(y), scene.right, 1);
}

function head(context, scene, row) {
  const { style, usage } = scene;
  if (row.ruled) rule(context, scene, row.y);
  label(context, style, row.title, 0, row.y + 14, style.t.ink, 12, 620);
  const width = context.measureText(row.title).width;
  const share = row.dc === undefined ? meanOf(usage.lanes, row.lanes) : usage.dcs[row.dc];
  const note = row.note + (share === null || share === undefined ? "" : `  ${percent(share)}`);
  if (width + 10 + 80 < scene.left || !scene.narrow) label(context, style, note, width + 10, row.y + 14, style.t.ink3);
}

function lane(context, scene, row) {
  const { style, model, usage } = scene, it = model.lanes[row.lane];
  if (!row.full) {
    if (row.height >= 10) label(context, style, laneName(it), 12, row.y + 9, style.t.ink3, 9);
    return;
  }
  label(context, style, laneName(it), 0, row.y + 13, style.t.ink2, scene.narrow ? 11 : 12);
  if (!scene.narrow) label(context, style, gpuName(model, it), 50, row.y + 13, style.t.ink3);
  busy(context, scene, usage.lanes[row.lane], row.y + 13);
}

// The node is said in full in the tooltip; here only what tells GPUs of one data centre apart.
function gpuName(model, it) {
  if (it.gpu === null || it.gpu === undefined) return "";
  const node = model.nodeLabel(it);
  return node ? `${node}·gpu-${it.gpu}` : `gpu-${it.gpu}`;
}

function busy(context, scene, share, y) {
  if (share === null || share === undefined) return;
  context.textAlign = "right";
  label(context, scene.style, percent(share, 0), scene.left - (scene.narrow ? 5 : 10), y, scene.style.t.ink2);
  context.textAlign = "left";
}

function heat(context, scene, row) {
  const { style, usage } = scene;
  label(context, style, `${row.isOpen ? "▾" : "▸"} ${row.title}`, 0, row.y + 11, style.t.ink2);
  if (!scene.narrow) label(context, style, `${row.lanes.length} GPUs`, 58, row.y + 11, style.t.ink3);
  busy(context, scene, meanOf(usage.lanes, row.lanes), row.y + 11);
}

function link(context, scene, row) {
  const { style, usage } = scene;
  label(context, style, clip(context, scene.narrow ? row.short : row.title, scene.left - 44), 0, row.y + 9, style.t.ink3);
  busy(context, scene, usage.links.get(row.link), row.y + 9);
}

function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let short = text;
  while (short.length > 3 && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}

function meanOf(values, indexes) {
  let sum = 0, n = 0;
  for (const i of indexes) if (values[i] !== null && values[i] !== undefined) { sum += values[i]; n++; }
  return n ? sum / n : null;
}

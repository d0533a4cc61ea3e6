// The legend, drawn with the timeline's own colours and patterns.
import { OP, OPS } from "../lib/wire.js";
import { $$ } from "../lib/dom.js";
import { makeStyle } from "./paint.js";

const KIND = {
  forward: OPS.indexOf(OP.F), recompute: OPS.indexOf(OP.R), backward: OPS.indexOf(OP.B), weight: OPS.indexOf(OP.W),
  allreduce: OPS.indexOf(OP.ALL_REDUCE), optimizer: OPS.indexOf(OP.OPTIMIZER), prefill: OPS.indexOf(OP.PREFILL),
};

export function paintLegend(root) {
  const paint = () => {
    const ratio = devicePixelRatio || 1, style = makeStyle(ratio);
    for (const canvas of $$("canvas[data-swatch]", root)) {
      canvas.width = 16 * ratio;
      canvas.height = 10 * ratio;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      swatch(context, style, canvas.dataset.swatch);
    }
  };
  paint();
  document.addEventListener("meridian:theme", paint);
}

function swatch(context, style, name) {
  if (name === "bubble") fill(context, style.bubble);
  else if (name === "activation" || name === "gradient") transfer(context, style, name === "gradient" ? 1 : 0);
  else if (name === "load" || name === "out") {
    context.fillStyle = style.loads[name === "out" ? 1 : 0];
    context.fillRect(0, 4, 16, 2);
  } else if (name === "predicted") {
    ["0", "1", "2"].forEach((kind, i) => { context.fillStyle = style.strip[kind]; context.fillRect(i * 5.4, 4, 5, 3); });
  } else {
    const kind = KIND[name];
    fill(context, style.fills[kind]);
    context.fillStyle = style.band;
    if (kind === 2) context.fillRect(0, 8, 16, 2);
    if (kind === 3) context.fillRect(0, 0, 16, 2);
    if (kind === 6) { context.strokeStyle = style.ops[6]; context.strokeRect(0.5, 0.5, 15, 9); }
  }
}

function fill(context, with_) {
  context.fillStyle = with_;
  context.fillRect(0, 0, 16, 10);
}

function transfer(context, style, gradient) {
  context.fillStyle = style.transfer[gradient];
  context.fillRect(0, 1, 16, 8);
  context.strokeStyle = style.transferEdge[gradient];
  context.strokeRect(0.5, 1.5, 15, 7);
  context.beginPath();
  for (const x of [4, 8.5, 13]) {
    const tip = gradient ? x - 2.4 : x + 2.4;
    const tail = x;
    context.moveTo(tail, 3); context.lineTo(tip, 5); context.lineTo(tail, 7);
  }
  context.stroke();
}

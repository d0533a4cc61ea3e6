// "What am I looking at?": the timeline in words, with the figures of this run.
import { STATUS } from "../lib/wire.js";
import { $, el, setText } from "../lib/dom.js";
import { count, difference, durationText, fixed, percent } from "../lib/format.js";
import { recall, remember } from "../lib/storage.js";
import { laneName } from "../timeline/gutter.js";

const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** @returns {Array<[string, string]>} what it is about, and the words */
export function explain(model, run, timeline) {
  const { lanes, usage } = model, pipelines = new Set(lanes.map((lane) => lane.pipeline)).size, stages = new Set(lanes.map((lane) => lane.stage)).size;
  const dcs = new Set(lanes.map((lane) => lane.dc)).size, first = lanes[0], last = lanes.at(-1);
  if (first?.worker) return [["A row is one worker", workers(model)], ...common(model, run, timeline)];
  return [
    ["A row is one GPU", first ? `${laneName(last)} is stage ${last.stage + 1} of pipeline ${last.pipeline + 1}. This run has ${many(pipelines, "pipeline")} of ${many(stages, "stage")}: ${many(lanes.length, "GPU")} in ${many(dcs, "data centre")}. The per cent beside a row say how much of the last ${many(usage?.iterations ?? 10, "iteration")} it spent computing.` : "No GPU is known yet."],
    ["A block is one op", "F3 is the forward pass of microbatch 3, R the recomputation before its backward, B the backward, W the weight part of a split backward, AR the all-reduce of gradients between pipelines. Colour and pattern say the same: forward is plain, recompute has slanted lines, backward a dark foot, weight a dark head, all-reduce level lines."],
    ["Empty is a bubble", `A hatched stretch is a GPU that waits for an activation, a gradient or the other pipelines. ${usage?.run ? `In the last ${many(usage.iterations, "iteration")} bubbles took ${percent(usage.run.bubbles)} of GPU time, computing ${percent(usage.run.utilization)}, all-reduce and optimizer ${percent(usage.run.sync)}.` : ""} Point at an op to see what it waited for.`],
    ["The thin strip is the prediction", predicted(model, run)],
    ["Between data centres", wide(model)],
    ...common(model, run, timeline),
  ];
}

function workers({ lanes, usage }) {
  return `Each of the ${many(lanes.length, "worker")} trains the whole model, which its GPU cannot hold. A block is one pass of a mini-batch through one sub-model: F forward, R the recomputation, B backward; AR is the sum of all workers' gradients. The thin lines under the blocks are copies: a sub-model that is loaded while another one computes, and below it gradients that leave for the host. A hatched stretch waits for a load or for the other workers.${usage?.run ? ` In the last ${many(usage.iterations, "iteration")} the GPUs computed ${percent(usage.run.utilization)} of the time.` : ""}`;
}

function common(model, run, timeline) {
  return [
    ["Now, and faults", `The green line is the last report${model.hasSpans ? "" : " (nothing yet)"}; right of it there is only the prediction. Diamonds on the time axis are faults, rings are changes of state: ${many(model.marks.length, "mark")} so far. ${timeline.view.live ? "The window follows the run; Space freezes it." : "The window is frozen; l goes back to the run's head."}`],
  ];
}

function predicted(model, run) {
  if (!model.predictedMs) return "Nothing was predicted for this run.";
  const now = model.usage?.iteration_ms ?? null;
  return `It shows what the simulator expects of each GPU, ${durationText(model.predictedMs)} an iteration and ${percent(model.predictedUtilization)} busy, counted from the real start of the iteration: where block and strip differ, the run differs from its prediction.${model.predictions.length > 1 ? ` At launch ${durationText(model.predictions[0].ms)} were predicted; each iteration shows what held in it.` : ""}${now === null ? "" : ` Measured: ${durationText(now)}, ${difference(now, model.predictedMs)}.`}${run.status === STATUS.QUEUED ? " The run waits, so the prediction stands alone." : ""}`;
}

function wide(model) {
  if (!model.links.length) return "All GPUs are in one data centre: nothing crosses the WAN.";
  const words = model.links.map((link) => {
    const used = model.usage?.links?.find((l) => l.from === link.from && l.to === link.to);
    const measured = used?.latency_ms == null ? "" : `, measured ${fixed(used.latency_ms, 1)}`;
    const facts = [link.latency_ms == null ? null : `${fixed(link.latency_ms, 0)} ms one way${measured}`, link.cap_gbps == null ? null : `${fixed(link.cap_gbps, 2)} Gbit/s per node pair`, used?.busy == null ? null : `busy ${percent(used.busy, 0)}`];
    return `${model.dcs[link.from]?.name} → ${model.dcs[link.to]?.name} (${facts.filter(Boolean).join(", ")})`;
  });
  return `The pale blocks with arrows are activations (forward, blue) and gradients (back, orange) on the WAN: ${words.slice(0, 4).join("; ")}${words.length > 4 ? `; and ${words.length - 4} more` : ""}.`;
}

/** The drawer at the right edge: closed until it is opened; whether it is open is remembered. */
export class Guide {
  constructor(root, buttons, wordsOf) {
    Object.assign(this, { root, buttons, wordsOf });
    for (const button of buttons) button.addEventListener("click", () => this.toggle());
    $("[data-guide-close]", root).addEventListener("click", () => this.close());
    $("[data-guide-keys]", root).addEventListener("click", () => $("#help")?.showModal());
    root.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
    this.toggle(recall("guide") === "on", false);
  }

  toggle(open = this.root.hidden, keep = true) {
    this.root.hidden = !open;
    for (const button of this.buttons) button.setAttribute("aria-expanded", String(open));
    if (keep) remember("guide", open ? "on" : "off");
    if (open) this.show();
    if (open && keep) this.root.focus({ preventScroll: true });
  }

  close() {
    this.toggle(false);
    this.buttons[0]?.focus({ preventScroll: true });
  }

  /** Words are changed in place, so that whoever reads them is not disturbed. */
  show() {
    if (this.root.hidden) return;
    const list = $("dl", this.root), words = this.wordsOf();
    if (list.children.length !== words.length) list.replaceChildren(...words.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));
    words.forEach(([, text], i) => setText(list.children[i].lastChild, text));
  }
}

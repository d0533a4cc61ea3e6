// The plan page: figures of an answer are drawn again when a slider brings another one.
import { $, $$, el, jsonScript } from "./lib/dom.js";
import { fixed } from "./lib/format.js";
import { paintPareto } from "./plan/pareto.js";
import { paintStages } from "./plan/stages.js";
import { bindControls } from "./timeline/controls.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";
import { Totals } from "./timeline/totals.js";

const section = $("[data-timeline-section]");
let timeline = null, painted = null;

function paint() {
  const script = document.getElementById("plan");
  if (!script || script === painted) return;
  painted = script;
  const plan = jsonScript("plan"), option = plan.options[plan.selected];
  if ($("#pareto")) paintPareto($("#pareto"), plan);
  if ($("#stages") && option) paintStages($("#stages"), plan);
  paintTimeline(plan, option);
}

function paintTimeline(plan, option) {
  section.hidden = !option?.feasible;
  if (section.hidden) return;
  const drawn = Boolean(plan.timeline?.predicted?.spans?.length);
  $("[data-timeline]", section).hidden = !drawn;
  $("[data-too-large]", section).hidden = drawn;
  const file = $("[data-timeline-file]", section);
  file.search = `?${plan.query ? `${plan.query}&` : ""}option=${plan.selected}`;
  $("[data-timeline-meta]", section).textContent = `D = ${option.dp_cells}${option.dp_cells > 1 ? `, one of ${option.dp_cells} equal cells` : ""}, schedule ${option.policy_name}`;
  $("[data-makes-up]", section).textContent = `iteration ${fixed(option.iteration_ms, 1)} ms = pipeline ${fixed(option.pp_time_ms, 1)} + all-reduce ${fixed(option.allreduce_ms, 1)}${afterAllReduce(option)}${option.bound_ms == null ? "" : `; no schedule of these stages takes less than ${fixed(option.bound_ms, 1)} ms`}`;
  if (!drawn) return;
  if (!timeline) {
    timeline = new Timeline($("[data-timeline]", section), { still: true, minimap: false, mode: "predicted" });
    bindControls(timeline, section);
    new Totals(timeline, section);
    paintLegend(section);
  }
  timeline.load(plan.timeline);
}

// What else an iteration has: the optimizer's step of a layer profile, or the gradients of a model's tied embedding,
// which only Algorithm 1 has outside the all-reduce.
function afterAllReduce(option) {
  const rest = option.iteration_ms - option.pp_time_ms - option.allreduce_ms;
  return rest > 1e-6 * option.iteration_ms ? ` + ${option.update_ms ? "optimizer" : "tied embedding"} ${fixed(rest, 1)}` : "";
}

// A slider says its value at once; the answer follows.
function say(slider) {
  const unit = slider.dataset.unit, text = `${slider.value}${unit && unit !== "GPUs" ? ` ${unit}` : ""}`;
  const output = $(`output[for="${slider.id}"]`);
  output.textContent = text;
  output.classList.toggle("is-changed", slider.value !== slider.dataset.planned);
  slider.setAttribute("aria-valuetext", `${slider.value} ${unit}`);
}
for (const slider of $$("#what-if input[type=range]")) {
  slider.addEventListener("input", () => say(slider));
  say(slider);
}

// What cannot be is said beside the field that asks for it: what the browser refuses is never sent, the rest the site refuses.
function mark() {
  const form = $("#what-if"), refused = $("#answer .problem[data-at]");
  for (const old of $$("[aria-invalid]", form)) { old.removeAttribute("aria-invalid"); old.removeAttribute("aria-describedby"); }
  $("#what-error")?.remove();
  const wrong = $("input:invalid", form), field = wrong ?? (refused && form.elements.namedItem(refused.dataset.at));
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "what-error");
  const text = wrong ? wrong.validationMessage : refused.dataset.says;
  (field.closest(".slider, dd") ?? field).after(el("p", { id: "what-error", className: "field-problem", role: "alert" }, text));
}
$("#what-if").addEventListener("input", mark);

document.addEventListener("htmx:afterSettle", () => {
  paint();
  mark();
  const share = $("[data-share]");
  if (share) share.dataset.copy = location.href;
});
paint();
mark();

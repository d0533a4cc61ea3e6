// The plan form: only the fields of the chosen source of times are shown; hidden fields keep their values.
import { $, $$ } from "./lib/dom.js";

const FIELDS = {
  times: ["forward_ms", "backward_ms", "recompute_ms", "activation_bytes", "comm_to_compute", "parameters_per_stage"],
  model: ["model", "model_micro_batch", "tp", "mfu", "weight_budget_gb", "kv_budget_gb"],
};
const TRAINING = ["layers", "hidden", "heads", "seq", "micro_batch", "steps", "lr", "seed"];

function show(name, shown) {
  const field = $(`[name="${name}"]`)?.closest(".field");
  // A field with an error is never hidden: what must be mended must be seen.
  if (field) field.hidden = !shown && !$(".errors", field);
  return field;
}

function follow(source) {
  for (const [kind, names] of Object.entries(FIELDS)) for (const name of names) show(name, kind === source.value);
  const training = TRAINING.map((name) => show(name, source.value === "times"));
  const section = training.find(Boolean)?.closest(".form-section");
  if (section) section.hidden = $$(".field", section).every((field) => field.hidden);
  $(".optional", $('[name="model"]')?.closest(".field") ?? document)?.remove();
}

const source = $('[name="source"]');
if (source) {
  source.addEventListener("change", () => follow(source));
  follow(source);
}

// The plan form: only the fields of the chosen source of times are shown; hidden fields keep their values.
import { $ } from "./lib/dom.js";

const FIELDS = {
  times: ["forward_ms", "backward_ms", "recompute_ms", "activation_bytes", "comm_to_compute", "parameters_per_stage"],
  model: ["model", "config_file", "config", "model_seq", "model_micro_batch", "tp", "spread", "layers_per_stage", "mfu", "weight_budget_gb", "kv_budget_gb"],
};
// Of the small model that a launch trains; the planned one has its own.
const SMALL = ["layers", "hidden", "heads", "seq", "micro_batch"];

function show(name, shown) {
  const field = $(`[name="${name}"]`)?.closest(".field");
  // A field with an error is never hidden: what must be mended must be seen.
  if (field) field.hidden = !shown && !$(".errors", field);
  return field;
}

// A config.json, and how long its sequences are, only where no preset is chosen.
const CONFIG = ["config_file", "config", "model_seq"];

function follow(source) {
  for (const [kind, names] of Object.entries(FIELDS)) for (const name of names) show(name, kind === source.value);
  const ofModel = source.value === "model";
  for (const name of CONFIG) show(name, ofModel && model.value === "config");
  figures.hidden = !ofModel;
  show("trains", ofModel);
  for (const name of SMALL) show(name, !ofModel || trains?.value !== "planned");
  $(".optional", $('[name="model"]')?.closest(".field") ?? document)?.remove();
}

const source = $('[name="source"]');
const trains = $('[name="trains"]');
const model = $('[name="model"]');
const figures = document.createElement("div");
figures.id = "model-figures";
figures.className = "across";
figures.setAttribute("aria-live", "polite");
$('[name="model_seq"]')?.closest(".field").after(figures);
// The text of a chosen file stands in the field below it, where it is checked as if it were pasted.
$('[name="config_file"]')?.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  const text = $('[name="config"]');
  if (!file || file.size > 128 << 10) return;
  text.value = await file.text();
  event.target.value = ""; // else it would replace what is changed in the text
  text.dispatchEvent(new Event("input", { bubbles: true }));
});
if (source) {
  for (const asked of [source, trains, model]) asked?.addEventListener("change", () => follow(source));
  follow(source);
}

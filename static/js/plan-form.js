// The plan form: only the fields of the chosen source of times are shown; hidden fields keep their values.
import { $ } from "./lib/dom.js";
import { followModel, show } from "./lib/model-fields.js";

const FIELDS = {
  times: ["forward_ms", "backward_ms", "recompute_ms", "activation_bytes", "comm_to_compute", "parameters_per_stage"],
  model: ["model", "config_file", "config", "model_seq", "model_micro_batch", "tp", "spread", "layers_per_stage", "mfu", "recompute", "zero", "weight_budget_gb", "kv_budget_gb", "memory_margin"],
};
// Of the stand-in that a launch trains; the planned one has its own.
const SMALL = ["layers", "hidden", "heads", "seq", "vocab", "micro_batch"];

function follow(source) {
  for (const [kind, names] of Object.entries(FIELDS)) for (const name of names) show(name, kind === source.value);
  const ofModel = source.value === "model";
  showConfig(ofModel);
  show("trains", ofModel);
  for (const name of SMALL) show(name, !ofModel || trains?.value !== "planned");
  $(".optional", $('[name="model"]')?.closest(".field") ?? document)?.remove();
}

const source = $('[name="source"]');
const trains = $('[name="trains"]');
const showConfig = followModel();
if (source) {
  for (const asked of [source, trains]) asked?.addEventListener("change", () => follow(source));
  follow(source);
}

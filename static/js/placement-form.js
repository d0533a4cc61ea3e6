// The placement form: only the fields of the chosen source of devices are shown; hidden fields keep their values.
import { $, $$ } from "./lib/dom.js";
import { followModel, show } from "./lib/model-fields.js";

const FIELDS = {
  inventory: ["datacenters", "device"],
  regions: ["regions", "each"],
  case: ["case"],
  document: ["document", "file"],
};
// A case and a document bring their own grid and bytes.
const OF_NETWORKS = ["stages", "data_parallel", "model", "batch", "dp_bytes", "pp_bytes"];

function follow(source) {
  for (const [kind, names] of Object.entries(FIELDS)) for (const name of names) show(name, kind === source.value);
  for (const name of OF_NETWORKS) show(name, source.value === "inventory" || source.value === "regions");
  showConfig(source.value === "inventory" || source.value === "regions");
  for (const name of ["evaluations", "seed"]) show(name, source.value !== "document");
  for (const section of $$(".form-section")) section.hidden = $$(".field", section).every((field) => field.hidden);
}

const source = $('[name="source"]');
const showConfig = followModel();
if (source) {
  source.addEventListener("change", () => follow(source));
  follow(source);
}

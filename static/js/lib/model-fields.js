// Fields that are shown only where they are asked for, and those of a model: a preset, or a config.json.
import { $ } from "./dom.js";

const CONFIG = ["config_file", "config", "model_seq"];
const MOST_BYTES = 128 << 10;

/** Show or hide the field `name`; hidden fields keep their values. */
export function show(name, shown) {
  const field = $(`[name="${name}"]`)?.closest(".field");
  // A field with an error is never hidden: what must be mended must be seen.
  if (field) field.hidden = !shown && !$(".errors", field);
}

/** Follow the choice of a model; the result, called with false, hides what belongs to a config. */
export function followModel() {
  const model = $('[name="model"]'), config = $('[name="config"]');
  if (!model || !config) return () => {};
  const figures = document.createElement("div");
  figures.id = "model-figures";
  figures.className = "across";
  figures.setAttribute("aria-live", "polite");
  $('[name="model_seq"]')?.closest(".field").after(figures);
  // The text of a chosen file stands in the field below it, where it is checked as if it were pasted.
  $('[name="config_file"]')?.addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file || file.size > MOST_BYTES) return;
    config.value = await file.text();
    event.target.value = ""; // else it would replace what is changed in the text
    config.dispatchEvent(new Event("input", { bubbles: true }));
  });
  let asked = true;
  function follow(shown = asked) {
    asked = shown;
    for (const name of CONFIG) show(name, shown && model.value === "config");
    figures.hidden = !shown;
  }
  model.addEventListener("change", () => follow());
  follow();
  return follow;
}

// Measured layers of a swap plan, in place of a model: a file becomes the text below it, which the form sends.
import { $ } from "./dom.js";
import { show } from "./model-fields.js";

const OF_LAYERS = ["layers_file", "layers"];
const OF_MODEL = ["micro_batch", "dtype_bytes", "recompute", "mfu", "block_gap_ms"];

/** What the plan reads of a profile, without spaces: it stands in the address. Other text stays as it is. */
function shortened(text) {
  try {
    const { gradients, layers } = JSON.parse(text);
    return layers ? JSON.stringify({ gradients, layers }) : text;
  } catch {
    return text;
  }
}

/** Follow the choice of a model, if the form takes measured layers. */
export function followLayers() {
  const model = $('[name="model"]'), text = $('[name="layers"]'), file = $('[name="layers_file"]');
  if (!model || !text || !file) return;
  const most = Number(text.dataset.mostBytes);
  // An address that is too long is refused before the form is read.
  function checkSize() {
    const bytes = new TextEncoder().encode(text.value).length;
    text.setCustomValidity(bytes > most ? `${bytes.toLocaleString("en")} bytes: at most ${most.toLocaleString("en")}.` : "");
  }
  function follow() {
    const measured = model.value === "layers";
    for (const name of OF_LAYERS) show(name, measured);
    for (const name of OF_MODEL) show(name, !measured);
    text.disabled = text.closest(".field").hidden; // keeps the text, and sends none
  }
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    text.value = shortened(await file.files[0].text());
    file.value = ""; // else it would replace what is changed in the text
    checkSize();
    text.reportValidity();
  });
  text.addEventListener("input", checkSize);
  model.addEventListener("change", follow);
  checkSize();
  follow();
}

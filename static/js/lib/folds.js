// Folded sections of forms: what the browser refuses is unfolded, and a line does not say what was changed since.
import { $ } from "./dom.js";

export function initFolds() {
  // Before the browser looks for a place for its message: it has none in what is folded.
  document.addEventListener("invalid", (event) => {
    const fold = event.target.closest(".form-fold");
    if (fold) fold.open = true;
  }, true);
  document.addEventListener("change", (event) => {
    const said = $("[data-said]", event.target.closest(".form-fold") ?? document.createElement("div"));
    if (said) said.textContent = "changed";
  });
}

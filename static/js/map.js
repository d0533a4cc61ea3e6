// The map of data centres: whoever points at one, or tabs to it, sees its links alone. The overview puts a new
// drawing into its page every few seconds, so the page listens, not the drawing.
import { $$ } from "./lib/dom.js";

function near(map, id) {
  map.classList.toggle("is-focused", id !== null);
  for (const part of $$("[data-a]", map)) {
    part.classList.toggle("is-near", id !== null && (part.dataset.a === id || part.dataset.b === id));
  }
}

for (const [type, enters] of [["mouseover", true], ["focusin", true], ["mouseout", false], ["focusout", false]]) {
  document.addEventListener(type, (event) => {
    const dc = event.target.closest?.("[data-map] [data-dc]");
    if (dc) near(dc.closest("[data-map]"), enters ? dc.dataset.dc : null);
  });
}

// The map of data centres: whoever points at one, or tabs to it, sees its links alone.
import { $, $$ } from "./lib/dom.js";

function near(map, id) {
  map.classList.toggle("is-focused", id !== null);
  for (const part of $$("[data-a]", map)) {
    part.classList.toggle("is-near", id !== null && (part.dataset.a === id || part.dataset.b === id));
  }
}

const map = $("[data-map]");
for (const dc of map ? $$("[data-dc]", map) : []) {
  for (const [type, id] of [["mouseenter", dc.dataset.dc], ["focusin", dc.dataset.dc], ["mouseleave", null], ["focusout", null]]) {
    dc.addEventListener(type, () => near(map, id));
  }
}

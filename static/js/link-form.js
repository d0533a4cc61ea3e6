// The form of a link: figures that the catalogue offers go into the fields when the reader takes them.
import { $ } from "./lib/dom.js";

const FIELDS = ["latency_ms", "bandwidth_gbps", "egress_price_per_gb"];

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-fill]");
  if (!button) return;
  for (const name of FIELDS) {
    const value = button.getAttribute(`data-fill-${name}`), field = $(`[name=${name}]`);
    if (value !== null && field) field.value = value;
  }
  $(`[name=${FIELDS[0]}]`)?.focus();
});

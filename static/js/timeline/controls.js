// The buttons in the head of a timeline section.
import { $, $$, setText } from "../lib/dom.js";

export function bindControls(timeline, section) {
  const bind = (selector, act) => $$(selector, section).forEach((button) => button.addEventListener("click", () => act(button)));
  bind("[data-mode]", (button) => timeline.setMode(button.dataset.mode));
  bind("[data-by]", (button) => timeline.setBy(button.dataset.by));
  bind("[data-zoom]", (button) => timeline.zoom(button.dataset.zoom === "in" ? 1 / 1.5 : 1.5));
  bind("[data-zoom-reset]", () => timeline.resetZoom());
  bind("[data-freeze]", () => timeline.toggleFreeze());
  bind("[data-as-table]", (button) => {
    const shown = timeline.toggleTable();
    button.setAttribute("aria-expanded", String(shown));
    setText(button, shown ? "Hide the table" : "Show as table");
  });
  const show = () => {
    $$("[data-mode]", section).forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.mode === timeline.mode)));
    $$("[data-by]", section).forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.by === timeline.by)));
    setText($("[data-zoom-reset]", section), timeline.options.still && timeline.view.iterations === 1 ? "Fit" : timeline.zoomText);
    const freeze = $("[data-freeze] span", section);
    if (freeze) setText(freeze, timeline.view.live ? "Freeze" : "Go live");
  };
  timeline.addEventListener("moved", show);
  show();
}

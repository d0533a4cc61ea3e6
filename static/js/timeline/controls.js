// The buttons and the field in the head of a timeline section.
import { $, $$, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { parsePlace } from "./goto.js";

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

/**
 * The field that goes to an iteration or a time.
 * @param {(iteration: number) => Promise<boolean>} fetchIteration  brings an iteration that the page does not hold
 */
export function bindGoto(timeline, form, fetchIteration) {
  const input = $("input", form), problem = $("[data-goto-problem]", form);
  const refuse = (text) => {
    setText(problem, text);
    problem.hidden = !text;
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { model } = timeline, last = model.iterations.at(-1)?.iteration ?? -1;
    const place = parsePlace(input.value, { epoch: model.epoch, until: model.frontier });
    if (!place) { refuse("An iteration such as 12, a time since the start such as 4.5 s, or a clock time such as 02:49:09 or 02:49:09 UTC."); return; }
    if (place.iteration !== undefined) {
      if (place.iteration > last) { refuse(last < 0 ? "No iteration has begun yet." : `The run has reached iteration ${count(last + 1)}.`); return; }
      if (!timeline.showIteration(place.iteration) && !(await fetchIteration(place.iteration) && timeline.showIteration(place.iteration))) {
        refuse(`Iteration ${count(place.iteration + 1)} is no longer kept.`);
        return;
      }
    } else if (place.time < 0 || place.time > model.frontier) { refuse("The run was not running then."); return; }
    else timeline.showTime(place.time);
    refuse("");
  });
  input.addEventListener("input", () => refuse(""));
  input.addEventListener("keydown", (event) => { if (event.key === "Escape") { input.value = ""; refuse(""); timeline.application.focus(); } });
  timeline.addEventListener("goto", () => { input.focus(); input.select(); });
}

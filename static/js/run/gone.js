// A range whose spans the server has deleted: the timeline says so, and offers the nearest that it has.
import { $, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";

/** @param {{timeline, section: Element, spans: EventTarget}} page */
export function sayGone({ timeline, section, spans }) {
  const note = $("[data-tl-gone]", section), button = $("button", note);
  let gone = null;
  const show = () => {
    const [first, last] = timeline.view.live ? [null, null] : timeline.shownIterations();
    note.hidden = !gone || first === null || gone.first > last || gone.last < first || timeline.model.hasSpansOf(first, last);
    if (note.hidden) return;
    setText($("span", note), `The spans of ${named(first, last)} are no longer stored.`);
    button.hidden = !gone.nearest;
    if (gone.nearest) setText(button, `Show ${named(gone.nearest.from, gone.nearest.to)}`);
  };
  spans.addEventListener("gone", (event) => { gone = event.detail; show(); });
  timeline.addEventListener("moved", show);
  button.addEventListener("click", async () => {
    const { from, to } = gone.nearest;
    await spans.fetch(from, to);
    timeline.showIterations(from, to);
    timeline.application.focus();
  });
}

const named = (first, last) => (first === last ? `iteration ${count(first + 1)}` : `iterations ${count(first + 1)} to ${count(last + 1)}`);

// The page of a trace: the timeline of its median iteration.
import { $, el } from "./lib/dom.js";
import { durationText, fixed } from "./lib/format.js";
import { bindControls } from "./timeline/controls.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";
import { Totals } from "./timeline/totals.js";

async function show(section) {
  const answer = await fetch(section.dataset.url, { headers: { Accept: "application/json" } });
  const drawn = answer.ok ? await answer.json() : { none: "The timeline could not be read. Load the page again." };
  if (!drawn.predicted) { excuse(section, drawn); return; }
  const timeline = new Timeline($("[data-timeline]", section), { still: true, minimap: false, mode: "predicted" });
  bindControls(timeline, section);
  new Totals(timeline, section);
  paintLegend(section);
  timeline.load(drawn);
  const some = drawn.replicas < drawn.of_replicas ? `, replicas 1–${drawn.replicas} of ${fixed(drawn.of_replicas, 0)}` : "";
  $("[data-timeline-meta]", section).textContent = `median iteration (step ${drawn.iteration} of the trace): ${durationText(drawn.predicted.iteration_ms)}, ${fixed(100 * drawn.predicted.utilization, 1)} % in forward and backward passes${some}`;
}

function excuse(section, drawn) {
  $(".section-head .tools", section).remove();
  $("[data-timeline]", section).replaceWith(el("p", { className: "empty" }, drawn.too_large
    ? `One replica has ${fixed(drawn.too_large, 0)} spans in this iteration, too many to draw here.` : drawn.none));
}

show($("[data-timeline-section]"));

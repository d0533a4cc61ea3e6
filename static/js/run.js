// The run page: applies snapshot and events to the timeline, the figures, the charts and the words.
import { MESSAGE, STATUS } from "./lib/wire.js";
import { $, $$, framed, jsonScript, setText } from "./lib/dom.js";
import { count } from "./lib/format.js";
import { Charts } from "./run/charts.js";
import { Connection } from "./run/connection.js";
import { showFigures } from "./run/figures.js";
import { Gpus } from "./run/gpus.js";
import { Guide, explain } from "./run/guide.js";
import { Heat } from "./run/heat.js";
import { History } from "./run/history.js";
import { followAddress } from "./run/address.js";
import { sayGone } from "./run/gone.js";
import { Spans } from "./run/spans.js";
import { addMarks, isOver, showBadge, showRanks, showRun } from "./run/status.js";
import { bindTabs } from "./run/tabs.js";
import { bindControls, bindGoto } from "./timeline/controls.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";
import { Totals } from "./timeline/totals.js";

const clock = { serverMs: 0, at: 0 }, kept = { of: 0 };
let run = {};
let slowAt = 0;

const page = $("[data-run-page]"), section = $("[data-timeline-section]");
const timeline = new Timeline($("[data-timeline]", section)), model = timeline.model;
const history = new History(page.dataset.historyUrl);
const charts = new Charts({ loss: $("#loss-chart"), links: $("#links-chart"), utilization: $("#utilization-chart"), faults: $("[data-fault]"), model, history });
const heat = new Heat($("#heat"), model);
const connection = new Connection({ path: page.dataset.wsPath, liveUrl: page.dataset.liveUrl });
const spans = new Spans(timeline, page.dataset.spansUrl);
const guide = new Guide($("[data-guide]", section), $$("[data-guide-open]", section), () => explain(model, run, timeline));

new Totals(timeline, section);

timeline.now = () => {
  return isOver(run) || !clock.at ? Math.max(model.frontier, 0) : clock.serverMs + performance.now() - clock.at;
};

const refresh = framed(() => {
  showRun(run, model);
  showBadge(connection, timeline, run);
  showFigures(model, run);
  showEmpty();
  showKept();
  if (Date.now() - slowAt < 1_000 || document.hidden) return;
  slowAt = Date.now();
  heat.paint();
  charts.draw();
  guide.show();
  history.refresh();
});

function showEmpty() {
  const note = $("[data-tl-empty]", section), none = !model.hasSpans;
  note.hidden = !none || (!isOver(run) && model.predictedOps.some((block) => block.n > 0));
  note.textContent = isOver(run) ? "The run ended before its first iteration." : "No prediction yet: the search for the run's schedule is not finished. The prediction will appear here.";
}

/** What of the stored spans the page holds. */
function showKept() {
  const note = $("[data-shown-spans]", section), held = model.told;
  note.hidden = !(kept.of > held);
  setText(note, `Showing ${count(held)} of ${count(kept.of)} spans; the trace has all that are kept.`);
}

function take(message) {
  if (message.now !== undefined) Object.assign(clock, { serverMs: message.now, at: performance.now() });
  const wasOver = isOver(run), was = run;
  if (message.run) run = { ...run, ...message.run };
  if (message.type === MESSAGE.EVENTS && isPlaced(was)) connection.renew();
  timeline.ended = isOver(run);
  if (message.type === MESSAGE.SNAPSHOT) {
    kept.of = message.shown?.of ?? 0;
    timeline.load(message);
  } else if (message.type === MESSAGE.EVENTS) {
    timeline.add(message);
    for (const batch of message.spans ?? []) kept.of += batch.spans.length;
  }
  if (message.usage) history.record(message.usage, message.now);
  if (isOver(run) && !wasOver) {
    history.refresh(true);
    $("#wan-traffic")?.dispatchEvent(new Event("meridian:over"));
  }
  if (message.type === MESSAGE.EVENTS && message.marks?.some((mark) => mark.costs)) $("#incidents")?.dispatchEvent(new Event("meridian:incident"));
  addMarks($("[data-marks]"), message.marks, (mark) => { tabs.show("watch"); timeline.showTime(mark.t * 1_000 - model.epoch); }, model);
  showRanks(message.ranks);
  refresh();
}

/** Whether a run that was queued when it was last heard of has got its nodes or its prediction, which no event tells. */
function isPlaced(was) {
  if (was.status !== STATUS.QUEUED) return false;
  return run.status !== STATUS.QUEUED || (!model.predictedMs && run.waits_for !== was.waits_for);
}

function bindCancel() {
  const dialog = $("#cancel-dialog");
  $("[data-cancel-open]")?.addEventListener("click", () => dialog.showModal());
  $("[data-cancel-close]", dialog ?? document)?.addEventListener("click", () => dialog.close());
}

// On this page ? explains what is drawn; the list of keys is one step further.
document.addEventListener("keydown", (event) => {
  if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
  if ($("dialog[open]") || $("#panel-watch").hidden) return;
  event.preventDefault();
  guide.toggle();
}, { capture: true });

const gpus = new Gpus(page.dataset.gpusUrl);
const tabs = bindTabs((name) => { gpus.watch(name === "ranks"); if (name === "watch") { timeline.resize(); slowAt = 0; refresh(); } });
bindControls(timeline, section);
bindGoto(timeline, $("[data-goto]", section), (iteration) => spans.fetch(iteration, iteration));
paintLegend(section);
bindCancel();
const first = jsonScript("snapshot");
if (first) {
  take({ type: "snapshot", ...first });
  connection.begin(first.seq);
}
sayGone({ timeline, section, spans });
followAddress({ timeline, section, spans, run: () => run });
connection.addEventListener("message", (event) => take(event.detail));
connection.addEventListener("state", () => showBadge(connection, timeline, run));
timeline.addEventListener("moved", () => { showBadge(connection, timeline, run); guide.show(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
connection.open();

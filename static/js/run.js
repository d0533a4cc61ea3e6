// The run page: applies snapshot and events to the timeline, the figures, the charts and the words.
import { $, $$, framed, jsonScript } from "./lib/dom.js";
import { Charts } from "./run/charts.js";
import { Connection } from "./run/connection.js";
import { showFigures } from "./run/figures.js";
import { Heat } from "./run/heat.js";
import { addMarks, showBadge, showRanks, showRun } from "./run/status.js";
import { bindControls } from "./timeline/controls.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";

const page = $("[data-run-page]"), section = $("[data-timeline-section]");
const timeline = new Timeline($("[data-timeline]", section)), model = timeline.model;
const charts = new Charts({ loss: $("#loss-chart"), links: $("#links-chart"), model });
const heat = new Heat($("#heat"), model);
const connection = new Connection({ path: page.dataset.wsPath, liveUrl: page.dataset.liveUrl });
const clock = { serverMs: 0, at: 0 };
let run = {};
let slowAt = 0;

const isOver = ({ status }) => ["succeeded", "failed", "cancelled"].includes(status);

timeline.now = () => {
  return isOver(run) || !clock.at ? Math.max(model.frontier, 0) : clock.serverMs + performance.now() - clock.at;
};

const refresh = framed(() => {
  showRun(run, model);
  showBadge(connection, timeline, run);
  showFigures(model, run);
  showEmpty();
  if (Date.now() - slowAt > 1_000) { slowAt = Date.now(); heat.paint(); charts.draw(); }
});

function showEmpty() {
  const note = $("[data-tl-empty]", section), none = !model.hasSpans;
  note.hidden = !none || model.predictedOps.some((block) => block.n > 0);
  note.textContent = isOver(run) ? "The run ended before its first iteration." : "No iteration has been measured yet. What is predicted appears here first.";
}

function take(message) {
  if (message.now !== undefined) Object.assign(clock, { serverMs: message.now, at: performance.now() });
  if (message.run) run = { ...run, ...message.run };
  timeline.ended = isOver(run);
  if (message.type === "snapshot") {
    timeline.load(message);
    charts.record(message.usage, message.now);
    addMarks($("[data-marks]"), message.marks);
  } else if (message.type === "events") {
    timeline.add(message);
    if (message.usage) charts.record(message.usage, message.now);
    addMarks($("[data-marks]"), message.marks);
  }
  showRanks(message.ranks);
  refresh();
}

function bindCancel() {
  const dialog = $("#cancel-dialog");
  $("[data-cancel-open]")?.addEventListener("click", () => dialog.showModal());
  $("[data-cancel-close]", dialog ?? document)?.addEventListener("click", () => dialog.close());
}

function bindTabs() {
  const tabs = $$("[data-tab]"), show = (name) => {
    for (const tab of tabs) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      $(`#panel-${tab.dataset.tab}`).hidden = !chosen;
    }
    if (name === "watch") { timeline.resize(); slowAt = 0; refresh(); }
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => { show(tab.dataset.tab); history.replaceState(null, "", tab.dataset.tab === "watch" ? location.pathname : `#${tab.dataset.tab}`); });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
      event.preventDefault();
    });
  });
  const wanted = location.hash.slice(1);
  if (tabs.some((tab) => tab.dataset.tab === wanted)) show(wanted);
}

bindControls(timeline, section);
paintLegend(section);
bindCancel();
bindTabs();
const first = jsonScript("snapshot");
if (first) take({ type: "snapshot", ...first });
connection.addEventListener("message", (event) => take(event.detail));
connection.addEventListener("state", () => showBadge(connection, timeline, run));
timeline.addEventListener("moved", () => showBadge(connection, timeline, run));
connection.open();

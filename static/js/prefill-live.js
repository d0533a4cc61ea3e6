// Prefill live: the timeline of one run over its socket; the figures above it are asked for by htmx.
import { MESSAGE } from "./lib/wire.js";
import { $, jsonScript } from "./lib/dom.js";
import { Connection } from "./run/connection.js";
import { bindControls } from "./timeline/controls.js";
import { paintLegend } from "./timeline/legend.js";
import { Timeline } from "./timeline/timeline.js";

const section = $("[data-timeline-section]"), badge = $("[data-badge]");

function say(link, text) {
  if (!badge) return;
  badge.dataset.link = link;
  badge.textContent = text;
}

function follow() {
  const timeline = new Timeline($("[data-timeline]", section)), { model } = timeline;
  const clock = { serverMs: 0, at: 0 };
  timeline.now = () => (clock.at ? clock.serverMs + performance.now() - clock.at : Math.max(model.frontier, 0));
  const connection = new Connection({ path: section.dataset.wsPath, liveUrl: section.dataset.liveUrl });
  const take = (message) => {
    if (message.now !== undefined) Object.assign(clock, { serverMs: message.now, at: performance.now() });
    if (message.type === MESSAGE.SNAPSHOT) timeline.load(message);
    else if (message.type === MESSAGE.EVENTS) timeline.add(message);
    const note = $("[data-tl-empty]", section);
    note.hidden = model.hasSpans;
    note.textContent = "No iteration has been measured yet.";
  };
  bindControls(timeline, section);
  paintLegend(section);
  const first = jsonScript("snapshot");
  take({ type: "snapshot", ...first });
  connection.begin(first.seq);
  connection.addEventListener("message", (event) => take(event.detail));
  connection.addEventListener("state", () => {
    if (connection.state === "offline") say("offline", "Offline");
    else if (connection.state === "polling") say("polling", "Polling");
    else if (connection.state === "live") say("live", "Live");
  });
  connection.open();
}

document.body.addEventListener("htmx:afterOnLoad", () => say("live", "Live"));
for (const name of ["htmx:sendError", "htmx:responseError"]) document.body.addEventListener(name, () => say("offline", "Offline, asks again every 2 s"));
if (section) follow();

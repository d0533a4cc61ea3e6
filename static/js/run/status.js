// State, reason, badge, marks and ranks, changed in place.
import { LEVEL, OVER, STATUS } from "../lib/wire.js";
import { $, $$, el, setText } from "../lib/dom.js";
import { count, span } from "../lib/format.js";
import { timeElement, written } from "../lib/times.js";

const MOST_MARKS = 200;

export const isOver = ({ status }) => OVER.includes(status);

export function showRun(run, model) {
  const state = $("[data-run-state]");
  state.dataset.state = run.state;
  setText(state, run.status_label);
  const made = Math.max(0, (run.iteration ?? -1) + 1), left = (run.steps - made) * (model.usage?.iteration_ms ?? model.typicalMs);
  setText($("[data-run-iteration]"), run.steps ? `Iteration ${count(made)} of ${count(run.steps)}` : "");
  setText($("[data-run-left]"), run.status === STATUS.RUNNING && made > 2 ? `${span(left / 1000)} left` : "");
  document.title = `${run.status_label} · ${run.name} · Meridian`;
  const over = isOver(run), reason = run.reason;
  const line = $("[data-run-reason]");
  line.hidden = !reason;
  line.querySelector(".mark").dataset.level = run.status === STATUS.FAILED ? LEVEL.ERROR : over || (run.status === STATUS.RUNNING && !run.ending) ? LEVEL.INFO : LEVEL.WARN;
  setText($("[data-reason-text]", line), reason);
  setText($("[data-reason-since]", line), run.since && !run.ending ? sinceWhen(run, over) : "");
  const cancel = $("[data-cancel-open]");
  if (cancel) cancel.hidden = !run.can_cancel;
  const retry = $("[data-retry]");
  if (retry) retry.hidden = !isOver(run);
  const resume = $("[data-resume]");
  if (resume) resume.hidden = !isOver(run) || run.saved_step === null;
  const plan = $("[data-if-measured]");
  if (plan) plan.hidden = !made;
  showSaved(run.saved_step);
}

/** From where the run could go on: the button that resumes it and the question before it is stopped. */
function showSaved(step) {
  for (const node of $$("[data-saved-step]")) setText(node, count(step ?? 0));
  for (const node of $$("[data-if-saved]")) node.hidden = step === null;
  for (const node of $$("[data-unless-saved]")) node.hidden = step !== null;
}

/** When an ended run ended; how long another has been as it is. */
function sinceWhen(run, over) {
  const when = written(new Date(run.since * 1_000), "recent");
  return over ? when : `since ${when}, ${span(Date.now() / 1_000 - run.since)}`;
}

/** Live / Behind 3 s / Offline, retry in 5 s / Frozen at 1,842. */
export function showBadge(connection, timeline, run) {
  const badge = $("[data-badge]"), over = isOver(run);
  const silent = Math.round((Date.now() - connection.heardAt) / 1000);
  let link = "live", text = "Live";
  if (connection.state === "refused") [link, text] = ["offline", "Offline, log in again"];
  else if (connection.state === "offline") {
    const wait = Math.max(0, Math.ceil((connection.retryAt - Date.now()) / 1000));
    [link, text] = ["offline", wait ? `Offline, retry in ${wait} s` : "Offline, retrying"];
  } else if (!timeline.view.live) [link, text] = ["frozen", `Frozen at ${count((timeline.frame?.shown ?? run.iteration ?? 0) + 1)}`];
  else if (connection.state === "polling") [link, text] = ["polling", "Every 5 s"];
  else if (connection.state === "connecting") [link, text] = ["connecting", "Connecting"];
  else if (over) [link, text] = ["ended", "Ended"];
  else {
    const lag = Math.round((timeline.now() - timeline.model.frontier) / 1000);
    const allowed = Math.max(2, (2.5 * timeline.model.typicalMs) / 1000);
    const behind = run.status === STATUS.RUNNING && timeline.model.frontier > 0 && lag > allowed ? lag : silent > 25 ? silent : 0;
    if (behind) [link, text] = ["behind", `Behind ${span(behind)}`];
  }
  badge.dataset.link = link;
  setText(badge, text);
}

/** Puts marks on top of the list; each can be shown on the timeline once there is one. */
export function addMarks(list, marks, showOn, model) {
  for (const mark of marks ?? []) {
    if (list.querySelector(`[data-seq="${mark.seq}"]`)) continue;
    const button = el("button", { type: "button", className: "link-button", onclick: () => showOn(mark) }, "Show on the timeline");
    list.prepend(el("li", { dataset: { level: mark.level, seq: String(mark.seq) } }, timeElement(mark.t, "recent"), el("span", {}, mark.text), button));
  }
  for (const button of list.querySelectorAll(".link-button")) button.hidden = model.epoch === null;
  while (list.children.length > MOST_MARKS) list.lastElementChild.remove();
  setText($("[data-marks-count]"), count(list.children.length));
  $("[data-marks-none]").hidden = list.children.length > 0;
}

let told = []; // what was last said of the ranks

/** Writes states into the table of GPUs; where its rows are not those of `ranks`, htmx brings it again. */
export function showRanks(ranks) {
  if (!ranks) return;
  told = ranks;
  if ($$("#gpus [data-rank]").length !== ranks.length) $("#gpus")?.dispatchEvent(new Event("meridian:gpus"));
  fillRanks();
}

// While the table was on its way more may have been said.
document.addEventListener("htmx:afterSettle", fillRanks);

function fillRanks() {
  for (const rank of told) {
    const row = $(`[data-rank="${rank.rank}"]`);
    if (!row) continue;
    const state = $(".state", row);
    if (state.dataset.state !== rank.state) {
      state.dataset.state = rank.state;
      setText(state, rank.state[0].toUpperCase() + rank.state.slice(1));
    }
    setText($("[data-detail]", row), rank.detail || "–");
  }
}

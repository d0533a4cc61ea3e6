// The log page: what is written meanwhile is appended; who has scrolled up stays where they read.
import { $, el, setText } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { timeElement } from "../lib/times.js";

const PERIOD_MS = 1_000, SLOWEST_MS = 15_000, MOST_SHOWN = 5_000;
const root = $("[data-log]"), badge = $("[data-log-badge]"), q = root.dataset.q.toLowerCase();
let after = Number(root.dataset.after), wait = PERIOD_MS, unread = 0;

const atEnd = () => root.scrollHeight - root.scrollTop - root.clientHeight < 24;

/** The text with what was searched for marked. */
function marked(text) {
  const span = el("span");
  if (!q) return el("span", {}, text);
  let from = 0;
  for (let at = text.toLowerCase().indexOf(q); at >= 0; at = text.toLowerCase().indexOf(q, from)) {
    span.append(text.slice(from, at), el("mark", {}, text.slice(at, at + q.length)));
    from = at + q.length;
  }
  span.append(text.slice(from));
  return span;
}

function row({ t, lane, text, dropped }) {
  return el("p", { className: dropped ? "dropped" : "" }, timeElement(t, "clock cell"), " ", el("b", {}, lane), " ", marked(text));
}

function tell(state, text) {
  badge.hidden = false;
  badge.dataset.link = state;
  setText(badge, text);
}

function append(lines) {
  const follow = atEnd();
  root.append(...lines.map(row));
  while (root.childElementCount > MOST_SHOWN) root.firstElementChild.remove();
  root.hidden = false;
  $("[data-log-empty]").hidden = true;
  if (follow) root.scrollTop = root.scrollHeight;
  else unread += lines.length;
}

async function poll() {
  const query = new URLSearchParams({ after, q: root.dataset.q, rank: root.dataset.rank });
  try {
    const answer = await fetch(`${root.dataset.url}?${query}`, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(String(answer.status));
    const { lines, after: newest, more, over } = await answer.json();
    if (lines.length) append(lines);
    after = newest;
    wait = more ? 0 : PERIOD_MS;
    if (over && !lines.length) return tell("over", "Ended");
    tell("live", unread ? `${count(unread)} new below` : "Live");
  } catch {
    wait = Math.min(SLOWEST_MS, Math.max(PERIOD_MS, wait * 2) * (0.75 + Math.random() / 2));
    tell("offline", `Offline, again in ${Math.round(wait / 1_000)} s`);
  }
  setTimeout(poll, wait);
}

for (const span of root.querySelectorAll("p > span")) if (q) span.replaceWith(marked(span.textContent));
root.addEventListener("scroll", () => { if (atEnd()) unread = 0; });
$("#rank").addEventListener("change", (event) => event.target.form.requestSubmit());
root.scrollTop = root.scrollHeight;
if ("open" in root.dataset) poll();

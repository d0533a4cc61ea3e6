// Times as their reader's clock shows them. The server writes UTC into every <time data-when>; here they move to the
// zone of the account, else of the browser. The title keeps UTC.
import { $$ } from "./dom.js";

export const zone = () => document.documentElement.dataset.timeZone || Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

let maker = null;
function parts(date) {
  maker ??= new Intl.DateTimeFormat("en-GB", {
    timeZone: zone(), hourCycle: "h23", timeZoneName: "short",
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  return Object.fromEntries(maker.formatToParts(date).map((part) => [part.type, part.value]));
}

/** By how many ms the reader's clock is ahead of UTC at `time` (Unix ms). */
export function ahead(time) {
  const p = parts(new Date(time));
  return Date.UTC(p.year, p.month - 1, p.day, p.hour, p.minute, p.second) - Math.floor(time / 1_000) * 1_000;
}

const WRITE = {
  second: (p) => `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}`,
  minute: (p) => `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}`,
  day: (p) => `${p.year}-${p.month}-${p.day}`,
  clock: (p) => `${p.hour}:${p.minute}:${p.second}`,
};

/** How long ago `date` was: 41 s ago, 52 min ago, 3 h ago; the same words as webapp/common/markup.py. */
export function ago(date) {
  const seconds = Math.round((Date.now() - date) / 1000), size = Math.abs(seconds);
  const [each, unit] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([s]) => size >= s) ?? [1, "s"];
  const amount = `${Math.floor(size / each)} ${unit}`;
  return seconds < 0 ? `in ${amount}` : `${amount} ago`;
}

/** `date` in the reader's zone; styles as in webapp/common/markup.py, "minute cell" leaves the zone to the column's head; "recent" is the clock of today, else day and minute. */
export function written(date, style = "second") {
  const [asked, rest] = style.split(" ");
  if (asked === "ago") return ago(date);
  const p = parts(date), name = asked === "recent" ? (WRITE.day(p) === WRITE.day(parts(new Date())) ? "clock" : "minute") : asked;
  return WRITE[name](p) + (rest === "cell" || name === "day" ? "" : ` ${p.timeZoneName}`);
}

/** A <time> for a moment in Unix seconds. */
export function timeElement(unixSeconds, style = "second") {
  const date = new Date(unixSeconds * 1000), node = document.createElement("time"), iso = date.toISOString();
  node.dateTime = iso;
  node.dataset.when = style;
  node.title = `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
  node.textContent = written(date, style);
  return node;
}

export function localTimes(root = document) {
  const now = parts(new Date()).timeZoneName;
  for (const node of $$("time[data-when]", root)) {
    const date = new Date(node.dateTime);
    if (!Number.isNaN(date.getTime())) node.textContent = written(date, node.dataset.when);
  }
  // Drawings cannot hold a <time>: their texts and titles say when in data-at, and what follows in data-rest.
  for (const node of $$("svg [data-at]", root)) node.textContent = written(new Date(node.dataset.at), node.dataset.when) + (node.dataset.rest ?? "");
  for (const node of $$("[data-zone]", root)) node.textContent = now;
  for (const node of $$("input[data-zone-name]", root)) node.value = zone();
}

export function initTimes() {
  localTimes();
  document.body.addEventListener("htmx:afterSettle", () => localTimes());
  setInterval(() => $$('time[data-when^="ago"]').forEach((node) => { node.textContent = ago(new Date(node.dateTime)); }), 15_000);
}

// The timeline's keys (design/look, "Keys"): each is one call of the timeline.
import { inField } from "../lib/dom.js";
import { singleKeysOn } from "../lib/keys.js";

const ACTIONS = {
  w: (t) => t.zoom(1 / 1.4), s: (t) => t.zoom(1.4), a: (t) => t.pan(-0.15), d: (t) => t.pan(0.15),
  ArrowLeft: (t) => t.moveOp(-1), ArrowRight: (t) => t.moveOp(1), ArrowUp: (t) => t.moveLane(-1), ArrowDown: (t) => t.moveLane(1),
  " ": (t) => t.toggleFreeze(), l: (t) => t.goLive(), 0: (t) => t.resetZoom(), m: (t) => t.nextMode(), b: (t) => t.nextBubble(), e: (t) => t.nextMark(),
  t: (t) => t.dispatchEvent(new Event("goto")), c: (t) => t.dispatchEvent(new Event("copylink")),
  Enter: (t) => t.pinOrOpen(), Escape: (t) => t.unpin(),
};
// Arrows, Enter and Esc belong to whatever has focus; they act on the timeline only while it has it.
const FOCUS_ONLY = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Enter"]);
// Space freezes wherever it would only scroll the page: not where it presses, opens or types.
const TAKES_SPACE = "button, summary, input, select, textarea, [contenteditable], [role=option], [role=menuitem]";

function freezes(timeline, root, event) {
  return event.key === " " && !event.shiftKey && !timeline.options.still && root.checkVisibility() && !event.target.closest?.(TAKES_SPACE);
}

export function listenForKeys(timeline, root, application) {
  let over = false;
  root.addEventListener("pointerenter", () => { over = true; });
  root.addEventListener("pointerleave", () => { over = false; });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || inField(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const focused = application.contains(document.activeElement), action = ACTIONS[event.key];
    const free = over && (document.activeElement === document.body || document.activeElement?.id === "content");
    if (!action || !(focused || freezes(timeline, root, event) || (free && !FOCUS_ONLY.has(event.key)))) return;
    if (!singleKeysOn() && event.key.length === 1 && !focused) return;
    event.preventDefault();
    if (event.key === " " && event.repeat) return; // held down, it freezes once
    action(timeline);
  });
}

// Pointer and wheel: hover, drag to pan, pinch and ctrl-wheel to zoom, click to pin, the minimap.
import { recent } from "./head.js";
import { MINIMAP } from "./sizes.js";

const DRAG_FROM_PX = 4;

export function listenForPointer(timeline, canvas) {
  let drag = null;
  const touches = new Map();
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    touches.set(event.pointerId, x);
    drag = { x, y, moved: false, map: timeline.options.minimap !== false && y < MINIMAP && x >= timeline.frame.left };
    canvas.setPointerCapture(event.pointerId);
    if (drag.map) jump(timeline, x);
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (touches.size === 2 && touches.has(event.pointerId)) { pinch(timeline, touches, event.pointerId, x); return; }
    if (!drag) { timeline.hover(x, y); return; }
    if (drag.map) { jump(timeline, x); return; }
    if (!drag.moved && Math.abs(x - drag.x) < DRAG_FROM_PX) return;
    drag.moved = true;
    canvas.classList.add("is-dragging");
    timeline.panPx(drag.x - x);
    drag.x = x;
  });

  const release = (event) => {
    touches.delete(event.pointerId);
    const [x, y] = place(event);
    if (drag && !drag.moved && !drag.map && event.type === "pointerup") timeline.press(x, y, event.pointerType);
    drag = null;
    canvas.classList.remove("is-dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => timeline.leave());

  canvas.addEventListener("wheel", (event) => {
    const [x] = place(event);
    if (event.ctrlKey || event.metaKey) timeline.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), x);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) timeline.panPx(event.deltaX || event.deltaY);
    else return;
    event.preventDefault();
  }, { passive: false });
}

function pinch(timeline, touches, id, x) {
  const [one, two] = [...touches.values()], before = Math.abs(one - two);
  touches.set(id, x);
  const [left, right] = [...touches.values()], after = Math.abs(left - right);
  if (before > 10 && after > 10) timeline.zoom(before / after, (left + right) / 2);
}

function jump(timeline, x) {
  const { left, right, model, now } = timeline.frame, [from, to] = recent(model, now);
  timeline.centreOn(from + ((x - left) / (right - left)) * (to - from));
}

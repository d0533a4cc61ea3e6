// The timeline: one widget for predicted and measured spans. It owns the canvases, the window and the focus.
import { $, el, framed } from "../lib/dom.js";
import { fixed } from "../lib/format.js";
import { factsOf, sentence, titleOf } from "./describe.js";
import { gaps, itemAt, itemOf, nearestOp, neighbour } from "./hit.js";
import { listenForKeys } from "./keys.js";
import { markAfter } from "./marks.js";
import { TimelineModel } from "./model.js";
import { boxOf, hasBox, paintOverlay } from "./overlay.js";
import { makeStyle } from "./paint.js";
import { Painter } from "./painter.js";
import { listenForPointer } from "./pointer.js";
import { layOut, rowAt } from "./rows.js";
import { fillTable } from "./table.js";
import { waitedFor } from "./waits.js";
import { TimeWindow } from "./window.js";

const MODES = ["both", "measured", "predicted"];

export class Timeline extends EventTarget {
  /**
   * @param {HTMLElement} root  the element of templates/partials/timeline.html
   * @param {{still?: boolean, minimap?: boolean, mode?: string}} options  still: one predicted iteration, no run
   */
  constructor(root, options = {}) {
    super();
    this.root = root;
    this.options = options;
    this.model = new TimelineModel();
    const narrow = root.clientWidth < 560;
    this.view = new TimeWindow(this.model, { still: options.still, iterations: narrow && !options.still ? 0.5 : 1 });
    this.painter = new Painter(this.model, options);
    this.mode = options.mode ?? "both";
    this.by = "dc";
    this.open = new Set();
    this.now = () => this.model.frontier;
    this.focus = null;
    this.pinned = false;
    this.pointer = null;
    this.#build();
    this.requestPaint = framed(() => this.paint());
    this.requestOverlay = framed(() => this.#overlay());
    new ResizeObserver(() => this.resize()).observe(this.viewport);
    document.addEventListener("meridian:theme", () => { this.style = null; this.requestPaint(); });
    this.viewport.addEventListener("scroll", () => this.requestPaint(), { passive: true });
    listenForPointer(this, this.overlay);
    listenForKeys(this, root, this.application);
  }

  #build() {
    this.application = $("[data-timeline-app]", this.root);
    this.viewport = $(".tl-viewport", this.root);
    this.spacer = $(".tl-spacer", this.root);
    this.base = $("canvas.tl-base", this.root);
    this.overlay = $("canvas.tl-overlay", this.root);
    this.tooltip = $(".tl-tooltip", this.root);
    this.sheet = $(".tl-sheet", this.root);
    this.region = $("[data-live]", this.root);
    this.tableRoot = $("[data-table]", this.root);
  }

  /** Takes a snapshot. Of the attempt that is shown already, what was measured and where one looks stay. */
  load(snapshot) {
    const { model } = this;
    if (model.isSame(snapshot)) model.renew(snapshot);
    else {
      model.reset(snapshot);
      model.epoch = snapshot.epoch ?? null;
      this.painter.coverage.clear();
      this.view.base = 0;
    }
    this.#take(snapshot);
    if (this.view.live) this.view.follow();
    this.relayout();
  }

  /** Takes what an event, or the stored spans of older iterations, brought. */
  add(message) {
    if (message.epoch !== undefined) this.model.epoch = message.epoch;
    if (message.usage) this.model.usage = message.usage;
    if (message.predicted) this.model.setPredicted(message.predicted, message.predicted_before);
    else this.model.addPredictions(message.predicted_before);
    this.#take(message);
    this.view.follow();
    this.requestPaint();
  }

  #take({ iterations, spans, marks }) {
    this.model.addIterations(iterations);
    this.model.addSpans(spans);
    this.model.addMarks(marks);
  }

  /** An ended run has nothing ahead of it that could be predicted. */
  set ended(ended) { this.options.ended = ended; }

  relayout() {
    this.layout = layOut(this.model, { by: this.by, open: this.open });
    const height = this.layout.height + this.painter.headHeight;
    this.spacer.style.height = `${height}px`;
    this.resize();
  }

  resize() {
    const width = this.viewport.clientWidth, height = Math.max(1, this.viewport.clientHeight), ratio = devicePixelRatio || 1;
    if (!this.style || this.style.ratio !== ratio) this.style = null;
    this.width = width;
    this.height = Math.min(height, (this.layout?.height ?? 0) + this.painter.headHeight) || height;
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(this.height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${this.height}px`;
    }
    this.paint();
  }

  paint() {
    if (!this.layout || !this.width) return;
    this.style ??= makeStyle(devicePixelRatio || 1);
    this.view.follow();
    this.frame = this.painter.scene({
      view: this.view, mode: this.mode, width: this.width, height: this.height, scroll: this.viewport.scrollTop,
      style: this.style, layout: this.layout, now: this.now(),
    });
    const started = performance.now();
    this.painter.paint(this.base.getContext("2d", { alpha: false }), this.frame);
    this.paintMs = performance.now() - started;
    if (this.pointer && !this.pinned) this.focus = itemAt(this.frame, ...this.pointer);
    this.#overlay();
    this.dispatchEvent(new Event("painted"));
  }

  #overlay() {
    if (!this.frame) return;
    const need = this.focus && hasBox(this.focus) ? waitedFor(this.frame, this.focus) : null;
    paintOverlay(this.overlay.getContext("2d"), this.frame, { cursorX: this.pointer?.[0] ?? null, item: this.focus, need });
    this.#tell(this.focus);
  }

  #tell(item) {
    const facts = item ? el("dl", { className: "pairs" }, ...factsOf(this.frame, item).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])) : null;
    const content = item ? [el("h3", {}, titleOf(this.frame, item)), facts] : [];
    const narrow = this.frame.narrow, box = item && hasBox(item) ? boxOf(this.frame, item) : null;
    this.sheet.hidden = !(narrow && item);
    this.tooltip.hidden = narrow || !item;
    (narrow ? this.sheet : this.tooltip).replaceChildren(...content);
    if (!narrow && item) this.#placeTooltip(box, item);
  }

  #placeTooltip(box, item) {
    const wide = this.tooltip.offsetWidth, high = this.tooltip.offsetHeight;
    const own = item.type === "mark" ? this.frame.x(item.start) : box?.x ?? 0, top = item.type === "mark" ? this.frame.head : this.pointer?.[1] ?? 0;
    const atX = this.pointer ? this.pointer[0] : Math.max(this.frame.left, own), foot = box ? box.y + box.height : top;
    const x = atX + 12 + wide > this.width ? Math.max(0, atX - wide - 12) : atX + 12;
    const below = foot + 8, above = (box?.y ?? foot) - high - 8;
    const y = below + high > this.height && above > 0 ? above : below;
    this.tooltip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  // What the pointer does.
  hover(x, y) {
    this.pointer = [x, y];
    if (!this.pinned && this.frame) this.focus = itemAt(this.frame, x, y);
    this.requestOverlay();
  }

  leave() {
    this.pointer = null;
    if (!this.pinned && !this.application.matches(":focus-visible")) this.focus = null;
    this.requestOverlay();
  }

  press(x, y, pointerType) {
    const row = rowAt(this.layout.rows, y - this.frame.head + this.frame.scroll);
    if (row?.kind === "heat" && y >= this.frame.head) { this.toggleRow(row); return; }
    this.focus = itemAt(this.frame, x, y);
    this.pinned = Boolean(this.focus) && !this.pinned;
    if (pointerType === "touch") this.pointer = null;
    this.#moved();
  }

  toggleRow(row) {
    if (this.open.has(row.key)) this.open.delete(row.key);
    else this.open.add(row.key);
    this.relayout();
  }

  // Window.
  panPx(px) { this.view.panMs((px / (this.frame.right - this.frame.left)) * this.view.span); this.#moved(); }
  pan(share) { this.view.pan(share); this.#moved(); }
  zoom(factor, x = null) { this.view.zoom(factor, x === null ? this.focus?.start ?? null : this.frame.time(x)); this.#moved(); }
  resetZoom() { this.view.reset(); this.#moved(); }
  centreOn(time) { this.view.panMs(time - (this.view.from + this.view.to) / 2); this.#moved(); }
  goLive() { this.view.goLive(); this.#moved(); }
  toggleFreeze() { if (this.view.live) this.view.freeze(); else this.view.goLive(); this.#moved(); }

  /** Shows [from, to] (ms since the epoch) and stays there. */
  showRange(from, to) { this.view.show(from, to); this.#moved(); }

  /** Shows a whole iteration; false where the page knows of none by that number. */
  showIteration(iteration) { return this.showIterations(iteration, iteration); }

  /** Shows iterations `first` to `last`; false where the page does not know when these were. */
  showIterations(first, last) {
    const start = this.model.startOf(first), until = this.model.startOf(last);
    if (start === null || until === null) return false;
    const length = this.#lengthOf(last);
    this.showRange(start - 0.03 * length, until + 1.16 * length);
    return true;
  }

  #lengthOf(iteration) {
    const start = this.model.startOf(iteration), end = this.model.endOf(iteration);
    return start === null || end === null ? this.model.typicalMs : end - start;
  }

  /** Shows a time in the middle, at the present zoom. */
  showTime(time) { this.showRange(time - this.view.span / 2, time + this.view.span / 2); }

  /** Takes what an address asked for (parseView); the range only where it is of this attempt. */
  showView(wanted) {
    if (wanted.mode && !this.options.still) this.mode = wanted.mode;
    if (wanted.by) this.by = wanted.by;
    if (wanted.open) this.open = new Set(wanted.open);
    this.relayout();
    if (wanted.from !== null) this.view.show(wanted.from, wanted.to);
    this.paint();
    this.pinOp(wanted.op);
    this.#moved();
  }

  /** Pins the op or transfer of a permalink; false where its spans are not here (yet). */
  pinOp(op) {
    const lane = op ? this.model.laneOfRank.get(op.rank) : undefined;
    if (lane === undefined || !this.frame) return false;
    const item = itemOf(this.frame, lane, op);
    if (!item) return false;
    [this.focus, this.pinned, this.pointer] = [item, true, null];
    this.#moved();
    return true;
  }

  nextMark() {
    const item = markAfter(this.model, this.focus?.type === "mark" ? this.focus.start : this.view.from);
    if (item) this.#focusOn(item);
  }

  #moved() {
    const [first, last] = this.view.live ? [null, null] : this.shownIterations();
    this.model.held = first === null ? null : [first, last];
    this.requestPaint();
    this.dispatchEvent(new Event("moved"));
  }

  setMode(mode) { this.mode = mode; this.#moved(); }
  nextMode() { if (!this.options.still) this.setMode(MODES[(MODES.indexOf(this.mode) + 1) % MODES.length]); }
  setBy(by) { this.by = by; this.relayout(); this.dispatchEvent(new Event("moved")); }

  /** Numbers, from 0, of the first and last iteration that began and that the window touches; [null, null] where none. */
  shownIterations() {
    const shown = this.model.anchors(this.view.from, this.view.to, false);
    return shown.length ? [shown[0].iteration, shown.at(-1).iteration] : [null, null];
  }

  /** The zoom in words: how many iterations the window is long. */
  get zoomText() {
    const n = this.view.live || this.options.still ? this.view.iterations : this.view.span / (1.19 * this.#lengthOf(this.frame?.shown ?? -1)), text = n >= 9.5 ? fixed(n, 0) : String(Number(n.toFixed(n < 1 ? 2 : 1)));
    return `${text} iteration${text === "1" ? "" : "s"}`;
  }

  // The focus of the keyboard.
  moveOp(step) {
    const from = this.focus?.type === "op" ? this.focus : null;
    this.#focusOn(from ? neighbour(this.frame, from, step) : this.#firstOp());
  }

  moveLane(step) {
    const lanes = this.layout.rows.filter((row) => row.kind === "lane" || row.kind === "heat");
    const at = lanes.findIndex((row) => (this.focus?.type === "heat" ? row.key === this.focus.row.key : row.kind === "lane" && row.lane === this.focus?.lane));
    const row = lanes[at < 0 ? 0 : Math.min(lanes.length - 1, Math.max(0, at + step))];
    if (!row) return;
    const time = this.focus?.start ?? this.frame.zero;
    this.#focusOn(row.kind === "heat" ? { type: "heat", row } : nearestOp(this.frame, row.lane, time), row);
  }

  #firstOp() {
    const row = this.layout.rows.find((r) => r.kind === "lane");
    return row ? nearestOp(this.frame, row.lane, this.frame.zero) : null;
  }

  nextBubble() {
    const lane = this.focus?.lane ?? this.layout.rows.find((row) => row.kind === "lane")?.lane;
    if (lane === undefined) return;
    const after = this.focus?.start ?? this.view.from, found = gaps(this.frame, lane).find((gap) => gap.start > after);
    if (found) this.#focusOn({ type: "bubble", lane, ...found });
  }

  #focusOn(item, row = null) {
    if (!item) return;
    this.focus = item;
    this.pointer = null;
    if (item.start !== undefined) {
      if (this.view.live && !this.options.still) this.view.freeze();
      this.view.reveal(item.start, item.end);
    }
    const at = row ?? this.layout.rows.find((r) => r.kind === "lane" && r.lane === item.lane);
    if (at) this.#scrollTo(at);
    this.paint();
    this.region.textContent = sentence(this.frame, item);
    this.dispatchEvent(new Event("moved"));
  }

  #scrollTo(row) {
    const shown = this.height - this.painter.headHeight, top = this.viewport.scrollTop;
    if (row.y < top) this.viewport.scrollTop = row.y;
    else if (row.y + row.height > top + shown) this.viewport.scrollTop = row.y + row.height - shown;
  }

  pinOrOpen() {
    if (this.focus?.type === "heat") { this.toggleRow(this.focus.row); return; }
    this.pinned = Boolean(this.focus) && !this.pinned;
    this.region.textContent = this.pinned ? "Pinned" : "Not pinned";
    this.#moved();
  }

  unpin() {
    this.pinned = false;
    this.focus = null;
    this.#moved();
  }

  toggleTable() {
    this.tableRoot.hidden = !this.tableRoot.hidden;
    if (!this.tableRoot.hidden) fillTable(this.tableRoot, this.frame);
    return !this.tableRoot.hidden;
  }
}

// The address says what is shown: range, rows, mode, pinned op. A link to it shows the same again.
import { $ } from "../lib/dom.js";
import { parseView, viewParams } from "../timeline/permalink.js";
import { keepShown } from "./keeping.js";

const AFTER_MS = 400, MOST_AT_ONCE = 40;

/** @param {{timeline, section: Element, spans, run: () => object}} page */
export function followAddress({ timeline, section, spans, run }) {
  let timer = null;
  const watching = () => !$("#panel-watch").hidden;
  const write = () => {
    if (!watching()) return;
    const text = viewParams(timeline, { generation: run().generation }).toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname);
  };
  timeline.addEventListener("moved", () => { clearTimeout(timer); timer = setTimeout(write, AFTER_MS); showTrace(section, timeline); });
  timeline.addEventListener("painted", () => showTrace(section, timeline));
  read();
  addEventListener("hashchange", read);

  async function read() {
    const wanted = parseView(location.hash);
    if (!wanted) return;
    if (wanted.generation !== null && wanted.generation !== run().generation) Object.assign(wanted, { from: null, to: null, iteration: null, op: null });
    const first = wanted.iteration - 1, last = Math.max(first, (wanted.last ?? wanted.iteration) - 1);
    if (wanted.iteration !== null && !timeline.model.hasSpansOf(first, last)) await spans.fetch(first, Math.min(last, first + MOST_AT_ONCE - 1));
    timeline.showView(wanted);
    if (wanted.iteration !== null && wanted.from === null) timeline.showIterations(first, last);
    if (wanted.op && !timeline.pinned && (await spans.fetch(wanted.op.iteration, wanted.op.iteration))) { timeline.paint(); timeline.pinOp(wanted.op); }
  }

  // js/lib/copy.js copies what data-copy holds when the button is pressed.
  const button = $("[data-copy-link]", section);
  button.addEventListener("click", () => {
    const text = viewParams(timeline, { range: true, generation: run().generation }).toString();
    button.dataset.copy = `${location.origin}${location.pathname}#${text}`;
    keepShown(timeline, section);
  }, { capture: true });
  timeline.addEventListener("copylink", () => button.click());
}

// The export follows the shown range; without iterations there is nothing to export.
function showTrace(section, timeline) {
  const link = $("[data-trace]", section), [first, last] = timeline.shownIterations();
  if (!link) return;
  link.hidden = first === null;
  const address = new URL(link.href, location.href);
  address.search = first === null ? "" : new URLSearchParams({ from: first, to: last }).toString();
  if (link.href !== address.href) link.href = address.href;
}

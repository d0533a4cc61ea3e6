// Spans of iterations that the page does not hold: fetched when the frozen window shows them.
const AFTER_MS = 350, MOST_AT_ONCE = 40, AGAIN_MS = 5_000;

/** Tells `gone` ({first, last, nearest}) where the server has no spans of iterations that were asked for. */
export class Spans extends EventTarget {
  constructor(timeline, url) {
    super();
    Object.assign(this, { timeline, url, asked: new Map() });
    timeline.addEventListener("moved", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#fill(), AFTER_MS);
    });
  }

  #fill() {
    const { view, model } = this.timeline;
    const range = view.live ? null : model.missing(view.from, view.to);
    if (!range || this.asked.has(`${range[0]}-${this.#lastOf(range)}`)) return;
    // One answer may hold fewer than were asked for: what is still missing is asked for next.
    this.fetch(range[0], this.#lastOf(range)).then((came) => { if (came) this.#fill(); });
  }

  #lastOf([first, last]) { return Math.min(last, first + MOST_AT_ONCE - 1); }

  /** Brings iterations `first` to `last` (from 0, both inside) as far as the server keeps them; true where any came. */
  fetch(first, last) {
    const key = `${first}-${last}`;
    if (!this.url) return Promise.resolve(false);
    if (!this.asked.has(key)) this.asked.set(key, this.#bring(first, last, key));
    return this.asked.get(key);
  }

  async #bring(first, last, key) {
    try {
      const response = await fetch(`${this.url}?from=${first}&to=${last}`, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(String(response.status));
      const { iterations, spans, predicted_before, nearest } = await response.json(), before = this.timeline.model.told;
      this.timeline.model.held = [first, last];
      this.timeline.add({ iterations, spans, predicted_before });
      if (!spans.length) this.dispatchEvent(new CustomEvent("gone", { detail: { first, last, nearest } }));
      return this.timeline.model.told > before;
    } catch {
      return false;
    } finally {
      // What is dropped for newer spans meanwhile may be asked for again.
      setTimeout(() => this.asked.delete(key), AGAIN_MS);
    }
  }
}

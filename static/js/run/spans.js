// Spans of iterations that the page does not hold: fetched when the frozen window shows them.
const AFTER_MS = 350, MOST_AT_ONCE = 40;

export class Spans {
  constructor(timeline, url) {
    Object.assign(this, { timeline, url, asked: new Set() });
    timeline.addEventListener("moved", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#fill(), AFTER_MS);
    });
  }

  #fill() {
    const { view, model } = this.timeline;
    const range = view.live ? null : model.missing(view.from, view.to);
    // One answer may hold fewer than were asked for: what is still missing is asked for next.
    if (range) this.fetch(range[0], Math.min(range[1], range[0] + MOST_AT_ONCE - 1)).then((came) => { if (came) this.#fill(); });
  }

  /** Brings iterations `first` to `last` (from 0, both inside) as far as the server keeps them; true where any came. */
  async fetch(first, last) {
    const key = `${first}-${last}`;
    if (!this.url || this.asked.has(key)) return false;
    this.asked.add(key);
    try {
      const response = await fetch(`${this.url}?from=${first}&to=${last}`, { headers: { Accept: "application/json" } });
      if (!response.ok) throw new Error(String(response.status));
      const { iterations, spans } = await response.json();
      this.timeline.model.held = [first, last];
      this.timeline.add({ iterations, spans });
      return spans.length > 0;
    } catch {
      this.asked.delete(key);
      return false;
    }
  }
}

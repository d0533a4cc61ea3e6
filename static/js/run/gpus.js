// What the GPUs of the run do now: asked for while their tab is open, written into the cells of their table.
import { $$, setText } from "../lib/dom.js";
import { bytes, fixed, percent } from "../lib/format.js";

const EVERY_MS = 5_000;

const memory = ({ memory_bytes: used, memory_total_bytes: total }) => (total ? `${bytes(used)} of ${bytes(total)}` : bytes(used));
const WORDS = { utilization: (gpu) => percent(gpu.utilization, 0), memory, temperature: (gpu) => fixed(gpu.temperature_c, 0), power: (gpu) => fixed(gpu.power_w, 0) };

export class Gpus {
  /** @param {string} url  of gpus.json */
  constructor(url) {
    this.url = url;
    this.timer = null;
    this.gpus = [];
    // The table may have been brought again meanwhile.
    document.addEventListener("htmx:afterSettle", () => this.#write());
  }

  /** Asks now and every 5 s from here on, or no longer. */
  watch(isOpen) {
    clearInterval(this.timer);
    this.timer = isOpen ? setInterval(() => this.refresh(), EVERY_MS) : null;
    return isOpen ? this.refresh() : Promise.resolve();
  }

  async refresh() {
    if (document.hidden) return;
    try {
      const response = await fetch(this.url, { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(EVERY_MS) });
      if (!response.ok) throw new Error(String(response.status));
      this.gpus = (await response.json()).gpus;
    } catch {
      this.gpus = this.gpus.map(({ rank }) => ({ rank })); // what was said before is not true for ever
    }
    this.#write();
  }

  #write() {
    for (const gpu of this.gpus) {
      for (const cell of $$(`#gpus [data-rank="${gpu.rank}"] [data-figure]`)) setText(cell, WORDS[cell.dataset.figure](gpu));
    }
  }
}

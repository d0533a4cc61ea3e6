// The whole run for the charts: history.json from the server, and what has come since it was read.
import { isWhole } from "../timeline/model.js";

// A short run is read again sooner: its last iterations are a good part of the chart.
const AGAIN_MS = 15_000, SOON_MS = 5_000, SHORT = 300, KEEP = 600;

/** At most `most` points, each the mean of its neighbours: a line with more points than pixels shows nothing. */
export function thinned({ x, y }, most) {
  const every = Math.ceil(x.length / most);
  if (every < 2) return { x, y };
  const points = { x: [], y: [] };
  for (let i = 0; i < x.length; i += every) {
    const values = y.slice(i, i + every).filter((value) => value !== null);
    points.x.push(x[Math.min(x.length, i + every) - 1]);
    points.y.push(values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  }
  return points;
}

export class History extends EventTarget {
  /** @param {string} url  of history.json; empty where the server has none */
  constructor(url) {
    super();
    this.url = url;
    this.iterations = [];
    this.dcs = [];
    this.links = [];
    this.recent = [];
    this.readAt = -Infinity;
  }

  /** Reads it again where it has become old, or at once. */
  async refresh(atOnce = false) {
    const again = this.iterations.length < SHORT ? SOON_MS : AGAIN_MS;
    if (!this.url || this.reading || (!atOnce && performance.now() - this.readAt < again)) return;
    this.reading = true;
    try {
      const response = await fetch(this.url, { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(20_000) });
      if (!response.ok) throw new Error(String(response.status));
      const { iterations, dcs, links } = await response.json();
      Object.assign(this, { iterations, dcs, links, recent: [] });
      this.dispatchEvent(new Event("read"));
    } catch { /* The charts keep what they have; the badge speaks of the connection. */
    } finally {
      this.reading = false;
      this.readAt = performance.now();
    }
  }

  /** Keeps what the server says of links and data centres now, for as long as no history has been read. */
  record(usage, now) {
    if (this.iterations.length || !usage?.links?.length || now - (this.recent.at(-1)?.t ?? -Infinity) < 200) return;
    this.recent.push({ t: now, links: usage.links, dcs: usage.dcs, utilization: usage.run?.utilization ?? null });
    if (this.recent.length > KEEP) this.recent.shift();
  }

  /** @returns {{x: number[], y: Array<number | null>}} seconds since the epoch and Gbit/s of one direction while sending */
  throughput(from, to) {
    const line = this.links.find((link) => link.from === from && link.to === to)?.gbps ?? [], points = { x: [], y: [] };
    this.iterations.forEach((it, i) => { if (isWhole(it)) { points.x.push(it.end / 1_000); points.y.push(line[i] ?? null); } });
    for (const row of this.recent) {
      points.x.push(row.t / 1_000);
      points.y.push(row.links.find((link) => link.from === from && link.to === to)?.gbps ?? null);
    }
    return points;
  }

  /** The same for utilization in per cent: of a DC by index, or of the run (null). */
  utilization(dc) {
    const points = { x: [], y: [] }, add = (t, share) => { points.x.push(t / 1_000); points.y.push(share === null || share === undefined ? null : share * 100); };
    this.iterations.forEach((it, i) => { if (isWhole(it)) add(it.end, dc === null ? it.utilization : this.dcs[dc]?.utilization[i]); });
    for (const row of this.recent) add(row.t, dc === null ? row.utilization : row.dcs?.[dc]?.utilization);
    return points;
  }
}

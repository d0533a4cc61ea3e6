// Numbers as people read them (design/look, "Words and units"). Absent is –, zero is 0.
const grouped = new Intl.NumberFormat("en-GB");
const ABSENT = "–";

const absent = (x) => x === null || x === undefined || !Number.isFinite(x);

export function fixed(x, decimals) {
  if (absent(x)) return ABSENT;
  const text = Math.abs(x).toFixed(decimals);
  const [whole, part] = text.split(".");
  const sign = x < 0 && Number(text) !== 0 ? "−" : "";
  return sign + grouped.format(Number(whole)) + (part ? `.${part}` : "");
}

export const count = (x) => (absent(x) ? ABSENT : grouped.format(x));

/** A number of slots, the unit of abstract scenarios: at most one decimal. */
const slots = (x) => fixed(x, Number.isInteger(x) ? 0 : 1);

/** A duration given in ms: [number, unit], in ms below 10 s, then s. Of another `unit`: in that. */
export function duration(ms, unit = "ms") {
  if (absent(ms)) return [ABSENT, unit];
  if (unit !== "ms") return [slots(ms), unit];
  if (Math.abs(ms) < 10_000) return [fixed(ms, Math.abs(ms) < 100 ? 1 : 0), "ms"];
  return [fixed(ms / 1000, Math.abs(ms) < 100_000 ? 2 : 1), "s"];
}

export const durationText = (ms, unit) => duration(ms, unit).join(" ");

/** A time on the axis or in a tooltip, one decimal in ms. */
export function instant(ms, unit = "ms") {
  if (absent(ms)) return ABSENT;
  if (unit !== "ms") return `${slots(ms)} ${unit}`;
  return Math.abs(ms) < 10_000 ? `${fixed(ms, 1)} ms` : `${fixed(ms / 1000, 3)} s`;
}

export const percent = (share, decimals = 1) => (absent(share) ? ABSENT : `${fixed(share * 100, decimals)} %`);

/** A signed difference of `now` against `reference`: +2.1 %. */
export function difference(now, reference) {
  if (absent(now) || absent(reference) || reference === 0) return ABSENT;
  const share = ((now - reference) / reference) * 100;
  const text = fixed(share, 1);
  return (share > 0 && text !== "0.0" ? "+" : "") + text + " %";
}

/** A span of time in words: 41 s, 52 min, 3 h 19 min, 6 d 3 h. */
export function span(seconds) {
  if (absent(seconds)) return ABSENT;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** Bytes per second and the like; GB = 10^9 bytes. */
export function bytes(n) {
  if (absent(n)) return ABSENT;
  if (n >= 1e9) return `${fixed(n / 1e9, 2)} GB`;
  if (n >= 1e6) return `${fixed(n / 1e6, 2)} MB`;
  if (n >= 1e3) return `${fixed(n / 1e3, 1)} kB`;
  return `${count(n)} B`;
}

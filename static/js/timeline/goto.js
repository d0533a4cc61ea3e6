// "Go to": an iteration, a time since the run began, or a clock time, as people write them.
import { ahead } from "../lib/times.js";

const UNITS = { ms: 1, s: 1_000, min: 60_000, h: 3_600_000 };

/**
 * @param {string} text  "1842", "12.5 s", "350 ms" (since the run's first iteration began) or "02:49:09": on the reader's clock, or with "UTC" behind it
 * @param {{epoch: number | null, until: number}} run  epoch in Unix ms; until: ms since the epoch that have passed
 * @returns {{iteration: number} | {time: number} | null} iteration from 0; time in ms since the epoch; null where it is none of these
 */
export function parsePlace(text, { epoch, until }) {
  const plain = text.trim().toLowerCase().replace(/[,\u202f\u00a0](?=\d{3})/g, "");
  const iteration = /^(?:iteration|it|#)?\s*(\d{1,9})$/.exec(plain);
  if (iteration) return Number(iteration[1]) >= 1 ? { iteration: Number(iteration[1]) - 1 } : null;
  const span = /^(\d+(?:\.\d+)?)\s*(ms|s|min|h)$/.exec(plain);
  if (span) return { time: Number(span[1]) * UNITS[span[2]] };
  const clock = /^(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?(\s*utc)?$/.exec(plain);
  return clock && epoch !== null ? clockTime(clock, epoch, until) : null;
}

// The last such time of day that the run has reached.
function clockTime([, hours, minutes, seconds = "0", utc], epoch, until) {
  if (hours > 23 || minutes > 59 || seconds >= 60) return null;
  const shift = utc ? () => 0 : ahead, now = epoch + until;
  const midnight = new Date(now + shift(now)).setUTCHours(0, 0, 0, 0), shown = midnight + hours * 3_600_000 + minutes * 60_000 + seconds * 1_000;
  // The clock may have been put forward or back since then.
  const since = (wall) => wall - shift(wall - shift(now)) - epoch;
  return { time: since(shown) <= until ? since(shown) : since(shown - 86_400_000) };
}

// What is shown, as text for the address: range, rows, mode and the pinned op; and back.
import { OPS, PAYLOAD } from "../lib/wire.js";

const BY = ["dc", "pipeline", "stage"], MODES = ["both", "measured", "predicted"];

/** The view as URL parameters; a live view has no range. `range`: put the range in even where it is live. */
export function viewParams(timeline, { range = false, generation = null } = {}) {
  const { view, focus, pinned, options } = timeline, params = new URLSearchParams();
  if (!view.live || range) {
    // In full: edges that fall between two pixels are drawn where they were.
    params.set("from", String(view.from));
    params.set("to", String(view.to));
    const shown = timeline.frame?.anchors.filter((anchor) => !anchor.ahead) ?? [];
    if (shown.length && !options.still) params.set("it", String(shown[0].iteration + 1));
    if (shown.length > 1 && !options.still) params.set("last", String(shown.at(-1).iteration + 1));
    if (generation > 1) params.set("attempt", String(generation));
  }
  if (timeline.by !== "dc") params.set("by", timeline.by);
  if (timeline.mode !== (options.mode ?? "both")) params.set("mode", timeline.mode);
  if (timeline.open.size) params.set("open", [...timeline.open].join("~"));
  if (pinned && focus) {
    const it = timeline.model.lanes[focus.lane];
    if (focus.type === "op") params.set("op", [it.rank, focus.iteration + 1, focus.kind, focus.microbatch].join("."));
    if (focus.type === "transfer") params.set("op", [it.rank, focus.iteration + 1, focus.gradient ? PAYLOAD.GRADIENT : PAYLOAD.ACTIVATION, focus.microbatch].join("."));
  }
  return params;
}

/**
 * What an address asks for; null where it asks for nothing. `iteration` to `last` count from 1; without `from` and `to` they are the range.
 * @returns {{from, to, iteration, last, generation, by, mode, open, op} | null}
 */
export function parseView(text) {
  const params = new URLSearchParams(text.replace(/^[#?]/, ""));
  const number = (key) => (params.has(key) && Number.isFinite(Number(params.get(key))) ? Number(params.get(key)) : null);
  const from = number("from"), to = number("to"), ranged = from !== null && to !== null && to > from;
  const wanted = {
    from: ranged ? from : null, to: ranged ? to : null, iteration: number("it"), last: number("last"), generation: number("attempt"),
    by: BY.includes(params.get("by")) ? params.get("by") : null, mode: MODES.includes(params.get("mode")) ? params.get("mode") : null,
    open: params.get("open")?.split("~") ?? null, op: parseOp(params.get("op")),
  };
  return Object.values(wanted).some((value) => value !== null) ? wanted : null;
}

function parseOp(text) {
  const found = /^(\d+)\.(\d+)\.([A-Za-z])\.(-?\d+)$/.exec(text ?? "");
  if (!found || ![...OPS, ...Object.values(PAYLOAD)].includes(found[3])) return null;
  return { rank: Number(found[1]), iteration: Number(found[2]) - 1, kind: found[3], microbatch: Number(found[4]) };
}

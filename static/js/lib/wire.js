// Words and letters of the site's messages. Written by scripts/browser_constants.py; change them in Python.
/** Codes of ops; their order is that in which the timeline counts them. */
export const OP = { F: "F", R: "R", B: "B", W: "W", ALL_REDUCE: "A", OPTIMIZER: "O", PREFILL: "P", CHECKPOINT: "C" };
export const OPS = Object.values(OP);
/** Copies between host and GPU next to the ops: a sub-model in, its gradients out. */
export const LOAD = { IN: "L", OUT: "G" };
export const TRANSFER = "T";
/** What a transfer carries. */
export const PAYLOAD = { ACTIVATION: "a", GRADIENT: "g" };
/** Where a run stands. */
export const STATUS = { QUEUED: "queued", STARTING: "starting", RUNNING: "running", STOPPING: "stopping", SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "cancelled" };
export const OVER = ["succeeded", "failed", "cancelled"];
/** How much a mark matters. */
export const LEVEL = { INFO: "info", WARN: "warn", ERROR: "error" };
/** Kinds of messages. */
export const MESSAGE = { SNAPSHOT: "snapshot", EVENTS: "events" };

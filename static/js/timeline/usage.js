// How busy lanes, DCs and links were: as the server says it, or computed from the prediction.

// What a prediction says never changes, so its shares are computed once.
const predictions = new WeakMap();

/** @returns {{lanes: number[], dcs: number[], links: Map<string, number>}} shares of 0 to 1, null where not known */
export function usageFor(model, mode) {
  if (mode !== "predicted") return fromServer(model);
  if (!predictions.has(model.predictedOps)) predictions.set(model.predictedOps, fromPrediction(model));
  return predictions.get(model.predictedOps);
}

function fromServer(model) {
  const usage = model.usage;
  return {
    lanes: usage?.lanes?.map((pair) => pair?.[0] ?? null) ?? [],
    dcs: usage?.dcs?.map((dc) => dc?.utilization ?? null) ?? [],
    links: new Map((usage?.links ?? []).map((link) => [`${link.from}>${link.to}`, link.busy])),
  };
}

function fromPrediction(model) {
  const whole = model.predictedMs || 1;
  const lanes = model.predictedOps.map((block) => block.busy / whole);
  const dcs = model.dcs.map((_, dc) => {
    const own = lanes.filter((_, i) => model.lanes[i].dc === dc);
    return own.length ? own.reduce((sum, share) => sum + share, 0) / own.length : null;
  });
  const links = new Map();
  for (const [key, byLane] of model.predictedSent) links.set(key, union([...byLane.values()]) / whole);
  return { lanes, dcs, links };
}

// Time in which anything is sent: transfers side by side count once.
function union(blocks) {
  const spans = blocks.flatMap((block) => Array.from(block.start, (start, i) => [start, block.end[i]])).sort((x, y) => x[0] - y[0]);
  let sum = 0, until = -Infinity;
  for (const [start, end] of spans) {
    sum += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  return sum;
}

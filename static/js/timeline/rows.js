// Which rows there are, how high they are and where they stand: DC heads, GPU lanes, link lanes, heat rows.
export const HEAD = 20, LANE = 22, THIN = 10, LINK = 13, HEAT = 14, GAP = 8;
const FULL_LANES = 40, THIN_LANES = 150, STAGE_ROWS = 150;

/** How lanes are drawn with so many GPUs. */
export function densityOf(lanes) {
  if (lanes <= FULL_LANES) return "full";
  return lanes <= THIN_LANES ? "thin" : "heat";
}

/**
 * @param {import("./model.js").TimelineModel} model
 * @param {{by: "dc" | "pipeline" | "stage", open: Set<string>}} options  open: keys of heat rows shown as lanes
 * @returns {{rows: Array, height: number}} rows: {kind, y, height, …} from top to bottom
 */
export function layOut(model, { by, open }) {
  const rows = [], density = densityOf(model.lanes.length);
  let y = 0;
  const put = (kind, height, rest) => { rows.push({ kind, y, height, ...rest }); y += height; };
  const groups = { dc: dataCentres, pipeline: pipelines, stage: stages }[by](model);
  groups.forEach((group, g) => {
    if (g > 0 && by !== "dc") y += GAP;
    put("head", HEAD, { title: group.title, note: group.note, lanes: group.lanes, dc: group.dc, ruled: g > 0 });
    if (density === "heat") putHeat(group, put, open, model);
    else for (const lane of group.lanes) put("lane", density === "full" ? LANE : THIN, { lane, key: `lane${lane}`, lanes: [lane], full: density === "full" });
    for (const links of group.links) {
      y += 6;
      put("rule", 4, {});
      for (const link of links) put("link", linkHeight(link), { ...link, key: link.id });
      y += 6;
    }
  });
  return { rows, height: y + 4 };
}

const linkHeight = (link) => (link.split > 1 ? 4 + 5 * link.split : LINK);

function putHeat(group, put, open, model) {
  const stages = collect(group.lanes, (lane) => model.lanes[lane].stage);
  const whole = stages.size > STAGE_ROWS ? [[null, group.lanes]] : [...stages];
  for (const [stage, lanes] of whole) {
    const key = `${group.title}.${stage ?? "all"}`, isOpen = open.has(key);
    put("heat", HEAT, { key, lanes, isOpen, title: stage === null ? "all stages" : `S${stage + 1}` });
    if (isOpen) for (const lane of lanes) put("lane", THIN, { lane, key: `lane${lane}`, lanes: [lane], full: false });
  }
}

function collect(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

const gpus = (n) => `${n} GPU${n === 1 ? "" : "s"}`;

function dataCentres(model) {
  const groups = model.dcs.map((dc, i) => ({ title: dc.name, dc: i, lanes: [], links: [] }));
  model.lanes.forEach((lane, i) => groups[lane.dc]?.lanes.push(i));
  for (const group of groups) {
    group.lanes.sort((x, y) => compare(model.lanes[x], model.lanes[y], "stage", "pipeline"));
    group.note = gpus(group.lanes.length);
  }
  const used = groups.filter((group) => group.lanes.length);
  used.sort((x, y) => model.lanes[x.lanes[0]].stage - model.lanes[y.lanes[0]].stage);
  for (const pair of hops(model, model.lanes)) {
    used.find((group) => group.dc === pair[0])?.links.push(directions(model, pair, null));
  }
  return used;
}

function pipelines(model) {
  const groups = collect(model.lanes.keys(), (i) => model.lanes[i].pipeline);
  return [...groups].sort(([x], [y]) => x - y).map(([pipeline, lanes]) => {
    lanes.sort((x, y) => model.lanes[x].stage - model.lanes[y].stage);
    const links = hops(model, lanes.map((i) => model.lanes[i])).map((pair) => directions(model, pair, pipeline));
    return { title: `Pipeline ${pipeline + 1}`, note: gpus(lanes.length), lanes, links };
  });
}

/** One group per stage, its replicas one under the other; the link to the next stage stands between them. */
function stages(model) {
  const groups = collect(model.lanes.keys(), (i) => model.lanes[i].stage);
  return [...groups].sort(([x], [y]) => x - y).map(([stage, lanes]) => {
    lanes.sort((x, y) => model.lanes[x].pipeline - model.lanes[y].pipeline);
    const dcs = [...new Set(lanes.map((i) => model.dcs[model.lanes[i].dc]?.name))].join(", ");
    const next = model.lanes[model.laneAt.get(`${model.lanes[lanes[0]].pipeline}.${stage + 1}`)], from = model.lanes[lanes[0]].dc;
    const links = next && next.dc !== from ? [directions(model, [from, next.dc], null, stage)] : [];
    return { title: `Stage ${stage + 1}`, note: `${dcs}, ${gpus(lanes.length)}`, lanes, links };
  });
}

function compare(x, y, ...fields) {
  for (const field of fields) if (x[field] !== y[field]) return x[field] - y[field];
  return 0;
}

/** The pairs of DCs between which neighbouring stages lie, in pipeline order. */
function hops(model, lanes) {
  const pairs = new Map();
  for (const lane of [...lanes].sort((x, y) => x.stage - y.stage)) {
    const next = model.lanes[model.laneAt.get(`${lane.pipeline}.${lane.stage + 1}`)];
    if (next && next.dc !== lane.dc) {
      const key = [lane.dc, next.dc].sort((x, y) => x - y).join("-");
      if (!pairs.has(key)) pairs.set(key, [lane.dc, next.dc]);
    }
  }
  return [...pairs.values()];
}

// `stage`: only what passes between it and the next one.
function directions(model, [a, b], pipeline, stage = null) {
  const name = (dc) => model.dcs[dc].name;
  return [[a, b], [b, a]].map(([from, to], down) => {
    const key = `${from}>${to}`;
    return { id: `${key}|${pipeline ?? ""}|${stage ?? ""}`, link: key, from, to, pipeline, stage, title: `${name(from)} → ${name(to)}`,
      short: down ? "up" : "down", split: pipeline === null ? overlapping(model, key) : 1 };
  });
}

/** In how many rows a link must be drawn so that transfers of pipelines that share it in space do not hide each other. */
function overlapping(model, key) {
  const blocks = [...(model.predictedSent.get(key) ?? new Map()).values()];
  if (blocks.length < 2) return 1;
  const spans = blocks.flatMap((block, lane) => Array.from(block.start, (start, i) => [start, block.end[i], lane])).sort((x, y) => x[0] - y[0]);
  for (let i = 1; i < spans.length; i++) {
    if (spans[i][0] < spans[i - 1][1] - 1e-6 && spans[i][2] !== spans[i - 1][2]) return Math.min(4, blocks.length);
  }
  return 1;
}

/** The row at a height, or null. */
export function rowAt(rows, y) {
  let low = 0, high = rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1, row = rows[middle];
    if (y < row.y) high = middle - 1;
    else if (y >= row.y + row.height) low = middle + 1;
    else return row;
  }
  return null;
}

/** The rows that touch [top, bottom], as [first, end). */
export function rowsBetween(rows, top, bottom) {
  let first = 0;
  while (first < rows.length && rows[first].y + rows[first].height < top) first++;
  let end = first;
  while (end < rows.length && rows[end].y <= bottom) end++;
  return [first, end];
}

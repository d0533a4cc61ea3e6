// The overview: the map of data centres and links, and cells that want arithmetic. Redrawn after every refresh.
import { $, $$, framed, jsonScript, svg } from "./lib/dom.js";
import { fixed, span } from "./lib/format.js";

const SQUARE = 9, ACROSS = 8, MOST_SQUARES = 64, MOST_DCS = 10, MOST_NARROW = 4;
const MARGIN = 14;

/** How tall the drawing of a data centre is, and how many GPUs one of its squares stands for. */
function sizeOf(dc) {
  const each = Math.max(1, Math.ceil(dc.gpus / MOST_SQUARES)), squares = Math.ceil(dc.gpus / each);
  const rows = Math.max(1, Math.ceil(squares / ACROSS));
  return { each, squares, high: 38 + rows * SQUARE + (each > 1 ? 14 : 0), wide: Math.max(108, dc.name.length * 7.8 + 18) };
}

/** Where the plates of the data centres stand: by longitude and latitude where all have them, else in a row. */
function places(dcs, sizes, wide, high) {
  if (wide < 560) return dcs.map((_, i) => [i % 2 ? wide - sizes[i].wide - MARGIN : MARGIN, MARGIN + i * 92]);
  const known = dcs.every((dc) => dc.latitude != null && dc.longitude != null) && dcs.length > 1;
  const roomX = wide - Math.max(...sizes.map((s) => s.wide)) - 2 * MARGIN, roomY = (i) => high - sizes[i].high - 2 * MARGIN;
  if (!known) return dcs.map((_, i) => [MARGIN + ((i + 0.5) / dcs.length) * roomX, MARGIN + (i % 2 ? 0.65 : 0.25) * roomY(i)]);
  const [west, east] = range(dcs, "longitude"), [south, north] = range(dcs, "latitude");
  const found = dcs.map((dc, i) => [MARGIN + ((dc.longitude - west) / (east - west || 1)) * roomX, MARGIN + ((north - dc.latitude) / (north - south || 1)) * roomY(i)]);
  return spreadOut(found, sizes, wide, high);
}

function range(dcs, key) {
  const all = dcs.map((dc) => dc[key]);
  return [Math.min(...all), Math.max(...all)];
}

// Data centres near each other must not hide each other, nor the words on the link between them: push them apart.
function spreadOut(points, sizes, wide, high) {
  const clamp = (i) => {
    points[i][0] = Math.min(wide - sizes[i].wide - MARGIN, Math.max(MARGIN, points[i][0]));
    points[i][1] = Math.min(high - sizes[i].high - MARGIN, Math.max(MARGIN, points[i][1]));
  };
  const far = points.length > 6 ? 6 : 90;
  for (let round = 0; round < 80; round++) {
    for (let i = 0; i < points.length; i++) for (let j = 0; j < i; j++) {
      const dx = points[i][0] - points[j][0], dy = points[i][1] - points[j][1];
      const overX = (dx >= 0 ? sizes[j] : sizes[i]).wide + far - Math.abs(dx), overY = Math.max(sizes[i].high, sizes[j].high) + 18 - Math.abs(dy);
      if (overX <= 0 || overY <= 0) continue;
      const toX = (dx >= 0 ? 1 : -1) * Math.min(8, overX / 4 + 0.5), toY = (dy >= 0 ? 1 : -1) * Math.min(4, overY / 6 + 0.5);
      points[i][0] += toX; points[j][0] -= toX; points[i][1] += toY; points[j][1] -= toY;
      clamp(i); clamp(j);
    }
  }
  return points;
}

/** The data centres that are drawn: all, or those with most going on; and the links between them. */
function shown({ dcs, links }, most) {
  const chosen = dcs.map((dc, index) => ({ ...dc, index })).sort((a, b) => b.busy - a.busy || b.silent - a.silent || b.gpus - a.gpus).slice(0, most);
  const at = new Map(chosen.map((dc, place) => [dc.index, place]));
  const between = links.filter((l) => at.has(l.from) && at.has(l.to)).map((l) => ({ ...l, from: at.get(l.from), to: at.get(l.to) }));
  return { dcs: chosen, links: between };
}

function paintMap() {
  const root = $("#map"), data = jsonScript("overview-data");
  if (!root || !data?.dcs?.length) return;
  // One unit is one px: words keep their size in a narrow window, where fewer data centres stand under each other.
  const wide = Math.max(300, Math.min(1100, root.clientWidth)), narrow = wide < 560;
  const { dcs, links } = shown(data, narrow ? MOST_NARROW : MOST_DCS), sizes = dcs.map(sizeOf);
  const high = narrow ? 80 + dcs.length * 92 : Math.max(220, Math.min(420, Math.max(...sizes.map((s) => s.high)) * 2 + 60, 140 + dcs.length * 40));
  const at = places(dcs, sizes, wide, high);
  const map = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "Data centres and the links between them" });
  for (let i = 0; i <= 8; i++) map.append(svg("line", { x1: (i * wide) / 8, x2: (i * wide) / 8, y1: 0, y2: high, class: "grid" }));
  for (let i = 0; i <= 4; i++) map.append(svg("line", { x1: 0, x2: wide, y1: (i * high) / 4, y2: (i * high) / 4, class: "grid" }));
  const centres = at.map(([x, y], i) => [x + sizes[i].wide / 2, y + sizes[i].high / 2]);
  // Used links last: they lie over idle ones. Plates lie over all lines.
  const lines = links.map((link) => drawLink(link, centres, high)).sort((a, b) => a.used - b.used);
  map.append(...lines.map((l) => l.line), ...dcs.map((dc, i) => drawDc(dc, ...at[i], sizes[i])), ...lines.flatMap((l) => l.words ?? []));
  root.replaceChildren(map);
  const note = $("[data-map-shown]");
  if (note) note.textContent = `${dcs.length} of ${fixed(Number(note.dataset.mapShown), 0)} drawn`;
}

// How far a link bows away from the straight line, so that it does not run behind a data centre that it passes.
function bendOf(link, centres) {
  const [x1, y1] = centres[link.from], [x2, y2] = centres[link.to], length = Math.hypot(x2 - x1, y2 - y1) || 1;
  let bend = 0;
  centres.forEach(([x, y], i) => {
    if (i === link.from || i === link.to) return;
    const along = ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length, off = ((x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)) / length;
    if (along > 30 && along < length - 30 && Math.abs(off) < 60) bend = (off >= 0 ? 1 : -1) * (110 - Math.abs(off));
  });
  return bend;
}

function drawLink(link, centres, high) {
  const [x1, y1] = centres[link.from], [x2, y2] = centres[link.to], bend = bendOf(link, centres);
  const used = link.gbps != null && link.gbps > 0, share = used ? Math.min(1, link.gbps / link.bandwidth_gbps) : 0;
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, away = [(-bend * (y2 - y1)) / length, (bend * (x2 - x1)) / length];
  const middle = [(x1 + x2) / 2 + away[0], Math.min(high - 18, Math.max(18, (y1 + y2) / 2 + away[1]))];
  const turn = [2 * middle[0] - (x1 + x2) / 2, 2 * middle[1] - (y1 + y2) / 2];
  const line = svg("path", { d: `M${x1} ${y1}Q${turn[0]} ${turn[1]} ${x2} ${y2}`, class: used ? "link" : "link unused", "stroke-width": used ? 1 + 3 * share : 1 });
  // Many idle links: their words would cover each other; the list of links has them.
  if (!used && centres.length > 6) return { line, used };
  const words = svg("a", { href: link.url ?? "#" });
  words.append(svg("rect", { x: middle[0] - 36, y: middle[1] - 14, width: 72, height: 28, class: "plate" }));
  words.append(svg("text", { x: middle[0], y: middle[1] - 2, "text-anchor": "middle", class: used ? "used" : "" }, used ? `${fixed(link.gbps, 1)} of ${fixed(link.bandwidth_gbps, 1)}` : `idle, ${fixed(link.bandwidth_gbps, 1)}`));
  words.append(svg("text", { x: middle[0], y: middle[1] + 11, "text-anchor": "middle" }, `${fixed(link.latency_ms, 0)} ms`));
  return { line, words, used };
}

function drawDc(dc, left, top, { each, squares, high, wide }) {
  const group = svg("a", { href: dc.url ?? "#" }), x = left + 10, silentFrom = dc.gpus - (dc.silent ?? 0);
  group.append(svg("rect", { x: left, y: top, width: wide, height: high, class: "plate" }));
  group.append(svg("text", { x, y: top + 14, class: "name" }, dc.name), svg("text", { x, y: top + 28 }, `${dc.busy} of ${dc.gpus} busy`));
  for (let i = 0; i < squares; i++) {
    const gpu = i * each, at = [x + (i % ACROSS) * SQUARE, top + 34 + Math.floor(i / ACROSS) * SQUARE];
    if (gpu >= silentFrom) group.append(svg("path", { d: `M${at[0]} ${at[1]}l7 7m0 -7l-7 7`, class: "silent" }));
    else if (gpu < dc.busy) group.append(svg("rect", { x: at[0], y: at[1], width: 7, height: 7, class: "busy" }));
    else group.append(svg("rect", { x: at[0] + 0.5, y: at[1] + 0.5, width: 6, height: 6, class: "idle" }));
  }
  if (each > 1) group.append(svg("text", { x, y: top + high - 4 }, `a square is ${each} GPUs`));
  return group;
}

function paintCells() {
  const number = (node, name) => (node.dataset[name] === "" ? null : Number(node.dataset[name]));
  for (const cell of $$("[data-share]")) if (number(cell, "share") !== null) cell.firstChild.textContent = fixed(number(cell, "share") * 100, 1);
  for (const cell of $$("[data-off]")) {
    const share = number(cell, "off");
    if (share === null) continue;
    cell.textContent = (share > 0 ? "+" : "") + fixed(share * 100, 1);
    if (Math.abs(share) <= 0.05) continue;
    cell.classList.add("warn");
    cell.title = "More than 5 % off the prediction";
  }
  for (const cell of $$("[data-left]")) if (number(cell, "left") !== null) cell.textContent = span(number(cell, "left"));
  for (const node of $$("[data-history]")) {
    const values = node.dataset.history.split(" ").filter(Boolean).map(Number);
    if (values.length < 2) continue;
    const path = values.map((v, i) => `${i ? "L" : "M"}${((i / (values.length - 1)) * 130).toFixed(1)} ${(15 - v * 14).toFixed(1)}`).join("");
    node.replaceChildren(svg("path", { d: `${path}L130 16L0 16Z`, class: "under" }), svg("path", { d: path }));
  }
}

function badge(link, text) {
  const node = $("[data-badge]");
  if (!node) return;
  node.dataset.link = link;
  node.textContent = text;
}

function paint() {
  paintMap();
  paintCells();
}

document.body.addEventListener("htmx:afterSettle", paint);
addEventListener("resize", framed(paintMap));
document.body.addEventListener("htmx:afterOnLoad", () => badge("live", "Live"));
for (const name of ["htmx:sendError", "htmx:responseError"]) document.body.addEventListener(name, () => badge("offline", "Offline, asks again every 5 s"));
paint();

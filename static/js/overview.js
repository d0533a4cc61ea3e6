// The overview: the map of data centres and links, and cells that want arithmetic. Redrawn after every refresh.
import { $, $$, jsonScript, svg } from "./lib/dom.js";
import { fixed, span } from "./lib/format.js";

const WIDE = 820, HIGH = 300, SQUARE = 9, ACROSS = 8, MOST_SQUARES = 64;

/** Places by longitude and latitude where all have them, else side by side. */
function places(dcs) {
  const known = dcs.every((dc) => dc.latitude != null && dc.longitude != null) && dcs.length > 1;
  if (!known) return dcs.map((_, i) => [((i + 0.5) / dcs.length) * (WIDE - 120) + 20, HIGH / 2 - 40 + (i % 2 ? 40 : -20)]);
  const range = (key) => { const all = dcs.map((dc) => dc[key]); return [Math.min(...all), Math.max(...all)]; };
  const [west, east] = range("longitude"), [south, north] = range("latitude");
  const found = dcs.map((dc) => [30 + ((dc.longitude - west) / (east - west || 1)) * (WIDE - 170), 40 + ((north - dc.latitude) / (north - south || 1)) * (HIGH - 150)]);
  return spreadOut(found);
}

// Data centres near each other must not hide each other: push them apart, a little at a time.
function spreadOut(points) {
  for (let round = 0; round < 60; round++) {
    for (let i = 0; i < points.length; i++) for (let j = 0; j < i; j++) {
      const dx = points[i][0] - points[j][0], dy = points[i][1] - points[j][1];
      if (Math.abs(dx) >= 215 || Math.abs(dy) >= 95) continue;
      const push = (215 - Math.abs(dx)) / 20 + 0.5, sign = dx >= 0 ? 1 : -1;
      points[i][0] = Math.min(WIDE - 140, Math.max(20, points[i][0] + push * sign));
      points[j][0] = Math.min(WIDE - 140, Math.max(20, points[j][0] - push * sign));
      points[i][1] = Math.min(HIGH - 100, Math.max(30, points[i][1] + (dy >= 0 ? 2 : -2)));
      points[j][1] = Math.min(HIGH - 100, Math.max(30, points[j][1] - (dy >= 0 ? 2 : -2)));
    }
  }
  return points;
}

function paintMap() {
  const root = $("#map"), data = jsonScript("overview-data");
  if (!root || !data?.dcs?.length) return;
  const at = places(data.dcs), map = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "group", "aria-label": "Data centres and the links between them" });
  for (let i = 0; i <= 8; i++) map.append(svg("line", { x1: (i * WIDE) / 8, x2: (i * WIDE) / 8, y1: 0, y2: HIGH, class: "grid" }));
  for (let i = 0; i <= 4; i++) map.append(svg("line", { x1: 0, x2: WIDE, y1: (i * HIGH) / 4, y2: (i * HIGH) / 4, class: "grid" }));
  const centre = (i) => [at[i][0] + 40, at[i][1] + 34];
  for (const link of data.links) map.append(drawLink(link, centre(link.from), centre(link.to), bendOf(link, data.dcs.map((_, i) => centre(i)))));
  data.dcs.forEach((dc, i) => map.append(drawDc(dc, ...at[i])));
  root.replaceChildren(map);
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

function drawLink(link, [x1, y1], [x2, y2], bend) {
  const used = link.gbps != null && link.gbps > 0, share = used ? Math.min(1, link.gbps / link.bandwidth_gbps) : 0;
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, away = [(-bend * (y2 - y1)) / length, (bend * (x2 - x1)) / length];
  const middle = [(x1 + x2) / 2 + away[0], clampY((y1 + y2) / 2 + away[1])], turn = [2 * middle[0] - (x1 + x2) / 2, 2 * middle[1] - (y1 + y2) / 2];
  const group = svg("a", { href: link.url ?? "#" });
  group.append(svg("path", { d: `M${x1} ${y1}Q${turn[0]} ${turn[1]} ${x2} ${y2}`, class: used ? "link" : "link unused", "stroke-width": used ? 1 + 3 * share : 1 }));
  group.append(svg("rect", { x: middle[0] - 38, y: middle[1] - 15, width: 76, height: 30, class: "plate" }));
  group.append(svg("text", { x: middle[0], y: middle[1] - 2, "text-anchor": "middle", class: used ? "used" : "" }, used ? `${fixed(link.gbps, 1)} of ${fixed(link.bandwidth_gbps, 1)}` : `idle, ${fixed(link.bandwidth_gbps, 1)}`));
  group.append(svg("text", { x: middle[0], y: middle[1] + 11, "text-anchor": "middle" }, `${fixed(link.latency_ms, 0)} ms`));
  return group;
}

const clampY = (y) => Math.min(HIGH - 18, Math.max(18, y));

function drawDc(dc, x, y) {
  const perSquare = Math.max(1, Math.ceil(dc.gpus / MOST_SQUARES)), squares = Math.ceil(dc.gpus / perSquare), rows = Math.max(1, Math.ceil(squares / ACROSS));
  const group = svg("a", { href: dc.url ?? "#" });
  group.append(svg("rect", { x: x - 8, y: y - 16, width: 100, height: 34 + rows * SQUARE + (perSquare > 1 ? 14 : 0), class: "plate" }));
  group.append(svg("text", { x, y, class: "name" }, dc.name), svg("text", { x, y: y + 14 }, `${dc.busy} of ${dc.gpus} busy`));
  for (let i = 0; i < squares; i++) {
    const gpu = i * perSquare, left = x + (i % ACROSS) * SQUARE, top = y + 20 + Math.floor(i / ACROSS) * SQUARE;
    const silentFrom = dc.gpus - (dc.silent ?? 0);
    if (gpu >= silentFrom) group.append(svg("path", { d: `M${left} ${top}l7 7m0 -7l-7 7`, class: "silent" }));
    else if (gpu < dc.busy) group.append(svg("rect", { x: left, y: top, width: 7, height: 7, class: "busy" }));
    else group.append(svg("rect", { x: left + 0.5, y: top + 0.5, width: 6, height: 6, class: "idle" }));
  }
  if (perSquare > 1) group.append(svg("text", { x, y: y + 32 + rows * SQUARE }, `a square is ${perSquare} GPUs`));
  return group;
}

function paintCells() {
  const number = (node, name) => (node.dataset[name] === "" ? null : Number(node.dataset[name]));
  for (const cell of $$("[data-share]")) if (number(cell, "share") !== null) cell.firstChild.textContent = fixed(number(cell, "share") * 100, 1);
  for (const cell of $$("[data-off]")) {
    const share = number(cell, "off");
    if (share === null) continue;
    cell.textContent = (share > 0 ? "+" : "") + fixed(share * 100, 1);
    cell.classList.toggle("warn", Math.abs(share) > 0.05);
  }
  for (const cell of $$("[data-left]")) if (number(cell, "left") !== null) cell.textContent = span(number(cell, "left"));
  for (const node of $$("[data-history]")) {
    const values = node.dataset.history.split(" ").map(Number).filter(Number.isFinite);
    if (values.length < 2) continue;
    const path = values.map((v, i) => `${i ? "L" : "M"}${((i / (values.length - 1)) * 130).toFixed(1)} ${(15 - v * 14).toFixed(1)}`).join("");
    node.replaceChildren(svg("rect", { width: 130, height: 16 }), svg("path", { d: path }));
  }
}

function paint() {
  paintMap();
  paintCells();
}

document.body.addEventListener("htmx:afterSettle", paint);
paint();

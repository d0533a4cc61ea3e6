// The map of data centres. Whoever points at one, or tabs to it, sees its links alone. The overview puts a new
// drawing into its page every few seconds, so the page listens, not the drawing. On the page of the map the
// drawing moves and zooms: the browser moves the old drawing at once, the server then draws that part anew, with
// plates and labels laid out for it.
import { $, $$ } from "./lib/dom.js";

function near(map, id) {
  map.classList.toggle("is-focused", id !== null);
  for (const part of $$("[data-a]", map)) {
    part.classList.toggle("is-near", id !== null && (part.dataset.a === id || part.dataset.b === id));
  }
}

for (const [type, enters] of [["mouseover", true], ["focusin", true], ["mouseout", false], ["focusout", false]]) {
  document.addEventListener(type, (event) => {
    const dc = event.target.closest?.("[data-map] [data-dc]");
    if (dc) near(dc.closest("[data-map]"), enters ? dc.dataset.dc : null);
  });
}

const WHEEL_MS = 150; // without a turn of the wheel for so long, the server draws
const PRESS_PX = 4; // a pointer that moves less clicks

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
/** As many degrees of longitude across as the server draws. */
const drawable = (map, degrees) => clamp(degrees, Number(map.dataset.closest), Number(map.dataset.widest));

/** What the drawing shows: middle and width in degrees, and how many units of the drawing a degree has. */
function shown(map) {
  const [lat, lon, degrees] = ["lat", "lon", "degrees"].map((name) => Number(map.dataset[name]));
  return { lat, lon, degrees, perDegree: map.viewBox.baseVal.width / degrees };
}

/** Show `part` in the old drawing, until the new one is there. */
function preview(map, part) {
  const now = shown(map), { width, height } = map.viewBox.baseVal;
  const world = Number($(".world", map)?.getAttribute("height") ?? height);
  const scale = part.degrees / now.degrees;
  const x = width / 2 + (part.lon - now.lon) * now.perDegree, y = world / 2 - (part.lat - now.lat) * now.perDegree;
  for (const child of map.children) {
    child.setAttribute("transform", `translate(${width / 2 - x / scale} ${world / 2 - y / scale}) scale(${1 / scale})`);
  }
}

function show({ lat, lon, degrees }) {
  const turned = ((lon + 180) % 360 + 360) % 360 - 180;
  open(`?lat=${clamp(lat, -90, 90).toFixed(3)}&lon=${turned.toFixed(3)}&degrees=${degrees.toFixed(3)}`);
}

function open(address) {
  const url = new URL(address, location.href);
  history.replaceState(null, "", url);
  const focused = document.activeElement?.closest("#map"); // it goes with the old drawing; keys are for the new one
  htmx.ajax("GET", url.pathname + url.search, { target: "#map-part", select: "#map-part", swap: "outerHTML" }).then(() => {
    if (focused && !document.activeElement?.closest("#map")) $("#map").focus({ preventScroll: true });
  });
}

/** `part` shown with `degrees` across, such that the point at `x`, `y` (shares of the drawing) stays where it is. */
function zoomed(part, degrees, { x, y, high }) {
  const gone = part.degrees - degrees;
  return { degrees, lon: part.lon + gone * (x - 0.5), lat: part.lat - gone * (y - 0.5) * high };
}

function whereIn(map, event) {
  const box = map.getBoundingClientRect(), { width, height } = map.viewBox.baseVal;
  return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height, high: height / width };
}

const part = document.getElementById("map-part");
if (part) {
  const mapNow = () => $("#map-part [data-map]");
  let drag = null, wheel = null, timer = 0;

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("#map-part .map-tools a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.href);
  });

  document.addEventListener("pointerdown", (event) => {
    const map = event.target.closest?.("#map-part [data-map]");
    if (map && event.button === 0 && event.pointerType !== "touch") drag = { map, x: event.clientX, y: event.clientY, to: null };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.to && Math.hypot(dx, dy) < PRESS_PX) return;
    const from = shown(drag.map), degree = drag.map.getBoundingClientRect().width / from.degrees;
    drag.to = { degrees: from.degrees, lon: from.lon - dx / degree, lat: clamp(from.lat + dy / degree, -90, 90) };
    drag.map.classList.add("is-dragged");
    preview(drag.map, drag.to);
  });
  document.addEventListener("pointerup", () => {
    if (drag?.to) show(drag.to);
    drag?.map.classList.remove("is-dragged");
    if (drag?.to) { // the click that ends a drag opens nothing
      const ignore = (event) => event.preventDefault();
      document.addEventListener("click", ignore, { capture: true });
      setTimeout(() => document.removeEventListener("click", ignore, { capture: true }), 0);
    }
    drag = null;
  });
  document.addEventListener("dragstart", (event) => { if (drag) event.preventDefault(); }); // of a link in it

  document.addEventListener("wheel", (event) => {
    const map = event.target.closest?.("#map-part [data-map]");
    if (!map || !(event.ctrlKey || event.metaKey)) return; // without a key the wheel scrolls the page
    event.preventDefault();
    const from = wheel ?? shown(map);
    wheel = zoomed(from, drawable(map, from.degrees * 1.002 ** event.deltaY), whereIn(map, event));
    preview(map, wheel);
    clearTimeout(timer);
    timer = setTimeout(() => { show(wheel); wheel = null; }, WHEEL_MS);
  }, { passive: false });

  const BUTTONS = { "+": "map-in", "=": "map-in", "-": "map-out", "0": "map-all" };
  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  document.addEventListener("keydown", (event) => {
    const map = event.target.closest?.("#map") && mapNow();
    if (!map || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = shown(map), step = STEPS[event.key], button = BUTTONS[event.key];
    if (step) show({ degrees: now.degrees, lon: now.lon + (step[0] * now.degrees) / 8, lat: now.lat + (step[1] * now.degrees) / 16 });
    else if (button) document.getElementById(button)?.click();
    else return;
    event.preventDefault();
  });
}

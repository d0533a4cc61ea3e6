// Frame times of the timeline with 960 GPUs: run `python benchmarks/timeline.py` and read the page or its output.
import { Timeline } from "/static/js/timeline/timeline.js";

const PIPELINES = 16, STAGES = 60, MICROBATCHES = 20, ITERATIONS = 4, F = 20;

// F waves down, R and B waves up: durations and counts of a real schedule, without its exact order.
function ops(stage, from) {
  const list = [];
  for (let m = 0; m < MICROBATCHES; m++) {
    const down = from + (stage + m) * F, up = from + STAGES * F + (STAGES - stage) * 2 * F + m * 3 * F;
    list.push(["F", m, down, down + F - 1], ["R", m, up, up + F], ["B", m, up + F, up + 3 * F - 1]);
  }
  return list;
}

function snapshot() {
  const lanes = [];
  for (let pipeline = 0; pipeline < PIPELINES; pipeline++) for (let stage = 0; stage < STAGES; stage++) lanes.push({ rank: lanes.length, pipeline, stage, dc: Math.floor(stage / 20), gpu: stage % 8, node: "n" });
  const length = (3 * STAGES + 3 * MICROBATCHES + 3) * F, spans = [], iterations = [];
  for (let iteration = 0; iteration < ITERATIONS; iteration++) {
    iterations.push({ iteration, start: iteration * length, end: (iteration + 1) * length, utilization: 0.3 });
    for (const lane of lanes) spans.push({ rank: lane.rank, iteration, spans: ops(lane.stage, iteration * length) });
  }
  const predicted = { iteration_ms: length, utilization: 0.3, spans: lanes.map((lane) => [lane.rank, ...ops(lane.stage, 0)]) };
  return { lanes, dcs: [{ name: "a" }, { name: "b" }, { name: "c" }], links: [], predicted, iterations, spans };
}

function frames(timeline, n) {
  const times = [];
  for (let i = 0; i < n; i++) {
    timeline.view.pan(0.002);
    const started = performance.now();
    timeline.paint();
    timeline.base.getContext("2d").getImageData(0, 0, 1, 1); // waits until it is painted
    times.push(performance.now() - started);
  }
  times.sort((x, y) => x - y);
  return { median_ms: times[n >> 1], p95_ms: times[Math.floor(n * 0.95)] };
}

const timeline = new Timeline(document.querySelector("[data-timeline]"));
timeline.load(snapshot());
frames(timeline, 5);
const result = { spans: timeline.model.spanCount, heat_rows: frames(timeline, 60) };
for (const row of timeline.layout.rows.filter((r) => r.kind === "heat").slice(0, 6)) timeline.open.add(row.key);
timeline.relayout();
frames(timeline, 5);
result.open_rows = frames(timeline, 60);
timeline.zoom(0.05);
result.close_up = frames(timeline, 60);
document.querySelector("#result").textContent = JSON.stringify(result);

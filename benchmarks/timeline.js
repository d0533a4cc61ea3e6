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

// Pans a little per frame. `cpu_ms` is what the frame costs this process, whatever else the machine does meanwhile.
async function frames(timeline, n) {
  const times = [], script = [], before = await window.cpuMs();
  for (let i = 0; i < n; i++) {
    timeline.view.pan(i < n / 2 ? 0.002 : -0.002);
    const started = performance.now();
    timeline.paint();
    script.push(performance.now() - started);
    timeline.base.getContext("2d").getImageData(0, 0, 1, 1); // waits until it is painted
    times.push(performance.now() - started);
  }
  const cpu = (await window.cpuMs()) - before;
  for (const list of [times, script]) list.sort((x, y) => x - y);
  const ms = (x) => Math.round(x * 10) / 10;
  return { median_ms: ms(times[n >> 1]), p95_ms: ms(times[Math.floor(n * 0.95)]), least_ms: ms(times[0]), script_ms: ms(script[n >> 1]), cpu_ms: ms(cpu / n) };
}

const timeline = window.timeline = new Timeline(document.querySelector("[data-timeline]"));
timeline.load(snapshot());
await frames(timeline, 5);
const result = { spans: timeline.model.spanCount, heat_rows: await frames(timeline, 60) };
for (const row of timeline.layout.rows.filter((r) => r.kind === "heat").slice(0, 6)) timeline.open.add(row.key);
timeline.relayout();
await frames(timeline, 5);
result.open_rows = await frames(timeline, 60);
timeline.zoom(0.05);
result.close_up = await frames(timeline, 60);
document.querySelector("#result").textContent = JSON.stringify(result);

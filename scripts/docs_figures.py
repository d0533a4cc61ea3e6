"""Draw the figures of the documentation as SVG files: schedules from the simulator's own answers, the
deviations of predictions from the tables of docs/truth.md.

python -m scripts.docs_figures      # writes docs/concepts/*.svg and docs/truth.svg
"""

from pathlib import Path
from typing import Any

from engine.inputs import parse
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from scripts import docs_truth as truth

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "concepts"
FIG6: dict[str, Any] = {
    "stages": 6,
    "dc_of_stage": [0, 0, 1, 1, 2, 2],
    "pipelines": 2,
    "microbatches": 4,
    "times": {"forward": 1, "backward": 2, "recompute": 1},
    "wan": {"latency": 0, "transfer": 2},
}
COLOURS = {"F": "#4f86e8", "R": "#2f9e6e", "B": "#d9761a", "W": "#8f5bbd"}
ROW, LEFT, TOP, WIDTH = 16, 64, 34, 860


def _figure(title: str, spans: list[dict[str, Any]], end: float) -> str:
    """One schedule: a row for each GPU, a block for each op, what is empty is a bubble."""
    rows = sorted({(span["pipeline"], span["stage"]) for span in spans})
    scale = (WIDTH - LEFT - 12) / end
    height = TOP + ROW * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="sans-serif" font-size="10"><title>{title}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="12" fill="#222222">{title}</text>',
    ]
    for number, (pipeline, stage) in enumerate(rows):
        y = TOP + ROW * number
        parts.append(f'<text x="8" y="{y + 11}" fill="#444444">P{pipeline + 1} S{stage + 1}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y + 1}" width="{end * scale:.1f}" height="{ROW - 2}" fill="#eeeeee"/>'
        )
    for span in spans:
        x = LEFT + span["start"] * scale
        y = TOP + ROW * rows.index((span["pipeline"], span["stage"]))
        width = (span["end"] - span["start"]) * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 1}" width="{width - 1:.1f}" height="{ROW - 2}"'
            f' fill="{COLOURS[span["op"]]}"/><text x="{x + width / 2:.1f}" y="{y + 12}" fill="#ffffff"'
            f' text-anchor="middle">{span["op"]}{span["microbatch"] + 1}</text>'
        )
    legend = "F forward   R recompute   B backward   grey: bubble   one pipeline and stage (one GPU) a row"
    parts.append(f'<text x="{LEFT}" y="{height - 10}" fill="#444444">{legend}</text></svg>')
    return "\n".join(parts) + "\n"


def draw(name: str, title: str, **changes: Any) -> None:
    answer = simulate(parse(Scenario, {**FIG6, **changes})).as_dict()
    spans = [span for span in answer["spans"] if span["track"] == "gpu"]  # type: ignore[attr-defined]
    makespan, busy = float(answer["makespan"]), float(answer["utilization"])  # type: ignore[arg-type]
    text = f"{title}: {makespan:g} slots, GPUs busy {100 * busy:.0f} %"
    (FOLDER / name).write_text(_figure(text, spans, makespan))


def main() -> None:
    near = {"dc_of_stage": [0] * 6, "pipelines": 1, "wan": {"latency": 0, "transfer": 0}}
    draw("one-dc.svg", "One pipeline in one data centre, 1F1B", policy="1f1b", **near)
    draw(
        "spatial.svg",
        "Three data centres, Varuna: each pipeline has its own share of the WAN",
        policy="varuna",
    )
    draw("temporal.svg", "Three data centres, Atlas: the pipelines take turns on the WAN", policy="atlas")
    (DOCS / "truth.svg").write_text(truth.figure((DOCS / "truth.md").read_text()))


if __name__ == "__main__":
    main()

r"""Every numbered algorithm, rule and equation of the papers is named where the code computes it.

So a reader of a paper finds its numbers by ``grep -rn "§\|Eq\." engine/``. The table below lists what the
papers number (and, of CrossPipe's slides, which number nothing, the titles that name a mechanism).
"""

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "engine"

# (paper, number as one line of the file says it, file under engine/)
SOURCES = [
    ("Atlas", "§3.1, footnote 1", "cluster/collectives.py"),  # ring all-reduce
    ("Atlas", "§3.2, footnote 2", "model/transformer.py"),  # bytes of an activation
    ("Atlas", "§4.1", "transport/tuning.py"),
    ("Atlas", "§4.3", "schedule/scenario.py"),
    ("Atlas", "§4.3 and §4.4", "transport/sharing.py"),
    ("Atlas", "§4.4, rule 1", "plan/job.py"),  # C pipelines in a cell
    *(("Atlas", f"§4.4, rule {rule}", "schedule/atlas.py") for rule in (1, 2, 3, 4)),
    ("Atlas", "Algorithm 1", "plan/dc_selection.py"),
    ("Atlas", "Algorithm 1, lines 2–10", "plan/dc_selection.py"),
    ("Atlas", "Algorithm 1, line 14", "plan/dc_selection.py"),
    ("Atlas", "Algorithm 1, lines 14–17", "plan/dc_selection.py"),
    ("Atlas", "Table 1", "transport/shape.py"),
    ("BubbleTea", "§5.1", "prefill/controller.py"),
    ("BubbleTea", "§5.1", "prefill/kernels/place.py"),  # pipelines of one rank in adjacent cells
    ("BubbleTea", "§5.1", "prefill/latency.py"),
    ("BubbleTea", "§5.1", "model/serving.py"),  # room for weights
    ("BubbleTea", "§5.1", "serve/kv_push.py"),
    ("BubbleTea", "§6.6, Fig. 14", "prefill/latency.py"),
    ("CrossPipe", "Traversal Patterns", "schedule/traversal.py"),
    ("CrossPipe", "Greedy Schedule", "schedule/crosspipe.py"),
    ("CrossPipe", "Optimal Schedule", "schedule/optimal.py"),
    ("CrossPipe", "Cross-DC DP vs. Cross-DC PP", "plan/cross_dc.py"),
    ("CrossPipe", "Implementation", "train/exchange.py"),
    ("Rail-only", "Eq. 1", "cluster/collectives.py"),
    ("Rail-only", "Eq. 2", "cluster/collectives.py"),
    ("Rail-only", "Eq. 3", "cluster/collectives.py"),
    ("Rail-only", "Table I", "cluster/collectives.py"),
    ("Rail-only", "Eq. 1", "plan/job.py"),
    ("Rail-only", "§III-B and §IV-B", "cluster/all_reduce.py"),
    ("Rail-only", "§III-B and §IV-B", "train/ring.py"),
    ("Rail-only", "§IV-B", "plan/network/traffic.py"),
    ("Rail-only", "§IV-C", "cluster/fabric.py"),
    ("Rail-only", "§V-A", "model/iteration.py"),
    ("Rail-only", "§V-B", "model/iteration.py"),
    ("Rail-only", "Table II", "cluster/fabric.py"),
    ("DT-FM", "Eq. 1", "plan/placement/kernel_cost.py"),
    ("DT-FM", "Eq. 2", "plan/placement/kernel_cost.py"),
    ("DT-FM", "Eq. 2", "train/ring.py"),
    ("DT-FM", "Eq. 3", "plan/placement/kernel_cost.py"),
    ("DT-FM", "Eq. 3", "plan/placement/kernel_matching.py"),
    ("DT-FM", "Eq. 4", "plan/placement/kernel_path.py"),
    ("DT-FM", "§3.4", "plan/placement/genetic.py"),
    ("DT-FM", "§3.4", "plan/placement/kernel_search.py"),
    ("DT-FM", "§4", "plan/placement/scenarios.py"),
    ("ATOM", "Algorithm 1", "plan/swap/partition.py"),
    ("ATOM", "§III-B", "plan/swap/request.py"),
    ("ATOM", "§III-D, Fig. 13", "plan/swap/partition.py"),
    ("ATOM", "§III-D", "train/swap/profiling.py"),
    ("ATOM", "§III-E", "train/swap/tracker.py"),
    ("ATOM", "§III-E", "train/swap/ledger.py"),
    ("ATOM", "§IV", "plan/swap/events.py"),
    ("ATOM", "Fig. 12", "plan/swap/events.py"),
    ("ATOM", "§V-A", "plan/swap/pipelines.py"),
    ("ATOM", "Table II", "plan/swap/models.py"),
]


@pytest.mark.parametrize(("paper", "number", "file"), SOURCES)
def test_a_number_of_a_paper_stands_in_one_line_of_the_code(paper: str, number: str, file: str) -> None:
    line = re.compile(rf"\b{re.escape(paper)}\b.*{re.escape(number)}(?![\dI])")
    text = (ENGINE / file).read_text(encoding="utf-8")
    assert line.search(text), f"engine/{file} does not say {paper}, {number}"


@pytest.mark.parametrize(
    ("paper", "numbered", "count"),
    [
        ("Atlas", "Algorithm", 1),
        ("Atlas", "rule", 4),
        ("Rail-only", "Eq.", 3),
        ("DT-FM", "Eq.", 4),
        ("ATOM", "Algorithm", 1),
    ],
)
def test_the_table_has_all_that_a_paper_numbers(paper: str, numbered: str, count: int) -> None:
    listed = {
        int(match.group(1))
        for of, number, _ in SOURCES
        if of == paper and (match := re.search(rf"{re.escape(numbered)} (\d+)", number))
    }
    assert listed == set(range(1, count + 1))

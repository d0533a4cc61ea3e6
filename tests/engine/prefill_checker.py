"""An independent look at a replay: every interval in a bubble, guard kept, no GPU twice, causal, all tokens.

Knows the scenario only by what `simulate` prints, and the controller only by the lines of --placements.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from engine.inputs import parse
from engine.schedule.scenario import Scenario
from engine.simulate import simulate

TOLERANCE_MS = 1e-5


def training(document: dict[str, Any]) -> tuple[float, dict[tuple[int, int], list[tuple[float, float]]]]:
    """Period in ms, and for each (pipeline, stage) when it trains in one period."""
    slot_ms = document["bubbles"]["slot_ms"]
    answer = simulate(parse(Scenario, document["bubbles"]["scenario"])).as_dict()
    busy: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for span in answer["spans"]:
        if span["track"] == "gpu":
            busy[span["pipeline"], span["stage"]].append((span["start"] * slot_ms, span["end"] * slot_ms))
    return answer["makespan"] * slot_ms, busy


def faults(document: dict[str, Any], lines: Iterable[dict[str, Any]]) -> list[str]:
    """What is wrong with the placements of a replay; empty where nothing is."""
    period, busy = training(document)
    lines, cells = list(lines), document.get("cells", 1)
    shift = period / cells if document.get("phase", "in") == "out" else 0.0
    guard = document["controller"].get("guard_ms", 1.0)
    faults = [fault for line in lines for fault in _of_request(document, line)]
    per_gpu: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        for interval in line["intervals"]:
            gpu = (interval["cell"], interval["pipeline"], interval["stage"])
            per_gpu[gpu].append((interval["start_ms"], interval["end_ms"]))
    for gpu, intervals in per_gpu.items():
        intervals.sort()
        for (_, end), (begin, _) in itertools.pairwise(intervals):
            if begin < end - TOLERANCE_MS:
                faults.append(f"{gpu}: two at once at {begin}")
        for begin, end in intervals:
            if _trains(busy[gpu[1:]], period, begin - gpu[0] * shift, end + guard - gpu[0] * shift):
                faults.append(f"{gpu}: [{begin}, {end}] is not in a bubble, {guard} ms before the next op")
    return faults


def _trains(busy: list[tuple[float, float]], period: float, begin: float, end: float) -> bool:
    """Whether any op of any lap meets [begin, end]."""
    first, last = int(begin // period) - 1, int(end // period) + 1
    return any(
        start + lap * period < end - TOLERANCE_MS and stop + lap * period > begin + TOLERANCE_MS
        for lap in range(first, last + 1)
        for start, stop in busy
    )


def _of_request(document: dict[str, Any], line: dict[str, Any]) -> list[str]:
    degree = document.get("pp_degree", 1)
    intervals, least = line["intervals"], document["controller"].get("chunk_tokens")
    name, faults = f"request {line['request']}", []
    chunks = [intervals[i : i + degree] for i in range(0, len(intervals), degree)]
    if len(chunks[-1]) != degree:
        faults.append(f"{name}: not every stage computed the last chunk")
    if any(len({i["tokens"] for i in chunk}) != 1 for chunk in chunks):
        faults.append(f"{name}: stages computed different chunks")
    if sum(chunk[0]["tokens"] for chunk in chunks) != line["tokens"]:
        faults.append(f"{name}: tokens do not add up")
    if least is None and len(chunks) > 1:
        faults.append(f"{name}: cut, though it must stay whole")
    if least is not None and any(chunk[0]["tokens"] < least for chunk in chunks[:-1]):
        faults.append(f"{name}: a chunk below {least} tokens")
    for stage in range(degree):
        ranks = {(c[stage]["cell"] - stage, c[stage]["pipeline"], c[stage]["stage"]) for c in chunks}
        if len(ranks) != 1 or next(iter(ranks))[0] % degree:
            faults.append(f"{name}: stage {stage} is not the same GPU of neighbouring cells")
        for before, after in itertools.pairwise(chunks):
            if after[stage]["start_ms"] < before[stage]["end_ms"] - TOLERANCE_MS:
                faults.append(f"{name}: a chunk before the one that it follows")
    for chunk in chunks:
        for before, after in itertools.pairwise(chunk):
            if after["start_ms"] < before["end_ms"] - TOLERANCE_MS:
                faults.append(f"{name}: a stage before the one that feeds it")
    if line["start_ms"] < line["arrival_ms"] - TOLERANCE_MS:
        faults.append(f"{name}: begun before it arrived")
    if line["start_ms"] != intervals[0]["start_ms"] or line["end_ms"] != intervals[-1]["end_ms"]:
        faults.append(f"{name}: start or end is not that of its intervals")
    return faults + _durations(document, name, chunks)


def _durations(document: dict[str, Any], name: str, chunks: list[list[dict[str, Any]]]) -> list[str]:
    """Chunks take what the model says; needs a profile of a_ms, b_ms, c_ms."""
    profile, done, faults = document["profile"], 0, []
    for chunk in chunks:
        tokens = chunk[0]["tokens"]
        squares = (done + tokens) ** 2 - done**2
        whole = profile["a_ms"] + profile["b_ms"] * tokens + profile["c_ms"] * squares
        for interval in chunk:
            took = interval["end_ms"] - interval["start_ms"]
            if abs(took - whole / len(chunk)) > TOLERANCE_MS:
                faults.append(f"{name}: {tokens} tokens in {took} ms, not {whole / len(chunk)}")
        done += tokens
    return faults

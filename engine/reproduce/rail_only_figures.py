"""The Rail-only paper's figures: traffic (2–5), and iteration time over HB domain, bandwidth and batch
(8–10).
"""

import csv
import itertools
import math
from functools import cache
from importlib.resources import files
from typing import Any

from engine.cluster.collectives import sent_bytes
from engine.inputs import parse
from engine.model.kernels import How
from engine.model.layout import Strategies
from engine.model.transformer import Experts, Transformer
from engine.plan.network.design import iteration_rows
from engine.plan.network.matrix import matrix
from engine.plan.network.request import NetworkRequest
from engine.plan.network.traffic import Job, Traffic, traffic
from engine.reproduce import Experiment, Outcome, Plot, Row, Series

GPT_1T = {"layers": 128, "hidden": 25_600, "heads": 160, "seq": 2048, "vocab": 51_200}
GPT_146B = {"layers": 80, "hidden": 12_288, "heads": 96, "seq": 2048, "vocab": 51_200}
MODELS = {"1T": (GPT_1T, 4096), "146B": (GPT_146B, 1024)}
CLUSTERS = (16_384, 32_768, 65_536)
HB_DOMAINS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEGATRON = How(recompute="full", sequence_parallel=False, fused_attention=False)
SELECTIVE = How(recompute="selective", sequence_parallel=True, fused_attention=False)


def _gpt(
    layers: int, hidden: int, heads: int, vocab: int = 51_200, moe: Experts | None = None
) -> Transformer:
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=vocab,
        seq=2048,
        moe=moe,
    )


@cache
def megatron_jobs() -> dict[str, Job]:
    """The four models of Fig. 2 as Megatron-LM ran them, on machines of 8."""
    text = files("engine").joinpath("data/korthikanti/megatron.csv").read_text(encoding="utf-8")
    jobs = {}
    for row in list(csv.DictReader(text.splitlines()))[-4:]:
        gpus, batch, tp, pp = (int(row[name]) for name in ("gpus", "batch", "tp", "pp"))
        jobs[f"{row['parameters_billion']}B"] = Job(
            model=_gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"])),
            how=MEGATRON,
            strategies=Strategies(tp=tp, pp=pp, dp=gpus // (tp * pp), interleave=1, micro_batch=1),
            batch=batch,
            hb_domain=8,
            gpus=gpus,
        )
    return jobs


def fig_2_and_3() -> Outcome:
    """Pairs that talk, and their traffic, in Megatron-LM's four largest runs."""
    rows = [row for name, job in megatron_jobs().items() for row in _shares(name, traffic(job))]
    return Outcome(rows=(*rows, *_heat_map(megatron_jobs()["1008.0B"])), plots=(_volumes(),))


def _shares(name: str, sent: Traffic) -> tuple[Row, ...]:
    parts = sent.as_dict()
    pairs = {kind: 100 * share for kind, share in parts["pairs"].items()}  # type: ignore[attr-defined]
    tp = 100 * (sent.hb_bytes["tp"] + sent.nic_bytes["tp"]) / sent.total_bytes
    return (
        Row(
            name=f"fig2 {name}: pairs without traffic",
            paper=99,
            ours=pairs["none"],
            unit="%",
            note="paper: over 99",
        ),
        Row(
            name=f"fig2 {name}: pairs with TP traffic",
            paper=0.04,
            ours=pairs["tp"],
            unit="%",
            note="paper: under 0.04; ordered pairs, ring of 8: 1/(N−1), so only N > 2,501 is under",
        ),
        Row(name=f"fig2 {name}: bytes that are TP", paper=75, ours=tp, unit="%", note="paper: over 75"),
    )


def _volumes() -> Plot:
    sent = [traffic(job) for job in megatron_jobs().values()]
    x = tuple(range(len(sent)))
    shares = {
        kind.upper(): tuple(
            100 * (each.hb_bytes[kind] + each.nic_bytes[kind]) / each.total_bytes for each in sent
        )
        for kind in ("tp", "dp", "pp")
    }
    return Plot(
        name="rail-only-fig2a",
        title="Traffic by parallelism: 146B, 310B, 530B, 1T (as Fig. 2a)",
        x_label="model",
        y_label="% of bytes",
        series=tuple(Series(label=label, x=x, y=y) for label, y in shares.items()),
        kind="bars",
    )


def _heat_map(job: Job) -> tuple[Row, ...]:
    """Fig. 3's largest entries: one pair inside an HB domain, one pair over a rail."""
    sums: dict[tuple[int, int], float] = {}
    largest = {"tp": 0.0, "nic": 0.0}
    for (sender, receiver, _), size in matrix(job).items():
        sums[sender, receiver] = sums.get((sender, receiver), 0.0) + size
    for (sender, receiver), size in sums.items():
        kind = "tp" if sender // 8 == receiver // 8 else "nic"
        largest[kind] = max(largest[kind], size)
    tp, nic = largest["tp"] / 1e9, largest["nic"] / 1e9
    note = (
        f"6 all-reduces a block and microbatch, 2 of them recomputed; 300 GB is what {6 * 300 / tp:.1f} send"
    )
    return (
        Row(name="fig3 1T: largest pair in an HB domain", paper=300, ours=tp, unit="GB", note=note),
        Row(name="fig3 1T: largest pair over a rail", paper=6, ours=nic, unit="GB"),
    )


def fig_4() -> Outcome:
    """GPT-1T on 16 HB domains of 256: TP 8, DP 64 over two domains, PP 8."""
    job = Job(
        model=_gpt(128, 25_600, 160),
        how=SELECTIVE,
        strategies=Strategies(tp=8, pp=8, dp=64, interleave=1, micro_batch=1),
        batch=4096,
        hb_domain=256,
        gpus=4096,
    )
    sent = traffic(job)
    gradients = sent.hb_bytes["dp"] + sent.nic_bytes["dp"]
    return Outcome(
        rows=(
            Row(
                name="fig4: bytes that are DP on NICs",
                paper=0.8,
                ours=100 * sent.nic_bytes["dp"] / sent.total_bytes,
                unit="%",
                note="as in Fig. 3 the paper has fewer TP bytes; 16 bytes a parameter are over 200 GB a GPU",
            ),
            Row(
                name="fig4: DP bytes inside HB domains",
                paper=98,
                ours=100 * sent.hb_bytes["dp"] / gradients,
                unit="%",
                tolerance=0.01,
            ),
        )
    )


def fig_5() -> Outcome:
    """MoE-1.3B of DeepSpeed-MoE, 128 experts on 16 machines of 8 A100s; shape from that paper, batch 512."""
    moe = Experts(experts=128, top_k=1, every=2)
    job = Job(
        model=_gpt(24, 2048, 16, vocab=50_257, moe=moe),
        how=SELECTIVE,
        strategies=Strategies(tp=1, pp=1, dp=128, interleave=1, micro_batch=1),
        batch=512,
        hb_domain=8,
        gpus=128,
    )
    sent = traffic(job)
    tokens = sent.hb_bytes["ep"] + sent.nic_bytes["ep"]
    gradients = sent.total_bytes - tokens
    inside, outside = sent_bytes("all_to_all", 1.0, 8, 16, forwarded=False)
    rails = sum(sent_bytes("all_to_all", 1.0, 8, 16))
    direct = tokens * (inside + outside) / rails
    return Outcome(
        rows=(
            Row(
                name="fig5: bytes that are all-to-all",
                paper=27,
                ours=100 * direct / (direct + gradients),
                unit="%",
                note=f"sent straight; forwarded over rails {100 * tokens / sent.total_bytes:.1f}",
            ),
        )
    )


@cache
def _iteration_s(
    name: str,
    gpus: int,
    hb_domain: int,
    batch: int,
    hb_gb_s: float = 450.0,
    nic_gb_s: float = 50.0,
    nominal: bool = False,
) -> tuple[float, float]:
    """Seconds on HB domains of that size, and with all GPUs in one; the fastest strategy of each.

    nominal : links run at their full rates.
    """
    document: dict[str, Any] = {
        "gpus": gpus,
        "hb_domain": hb_domain,
        "switch_radix": 64,
        "gpu_type": "h100",
        "hb_gb_s": hb_gb_s,
        "nic_gb_s": nic_gb_s,
        "model": MODELS[name][0],
        "batch": batch,
        "micro_batch": None,
        "efficiency": {"hb": 1, "nic": 1} if nominal else {},
    }
    (row,) = iteration_rows(parse(NetworkRequest, document))
    assert row.iteration_s is not None  # all of these fit
    assert row.ideal_s is not None
    return row.iteration_s, row.ideal_s


def fig_8() -> Outcome:
    """Iteration time over the size of HB domains."""
    rows = [row for gpus in CLUSTERS for row in _fig_8_rows(gpus)]
    return Outcome(rows=tuple(rows), plots=tuple(_fig_8_plot(name) for name in MODELS))


def _fig_8_rows(gpus: int) -> tuple[Row, ...]:
    def over_ideal(name: str, nominal: bool) -> float:
        at_256, ideal = _iteration_s(name, gpus, 256, MODELS[name][1], nominal=nominal)
        return 100 * (at_256 / ideal - 1)

    def saved(few: int, many: int, nominal: bool) -> float:
        less, more = (_iteration_s("146B", gpus, k, 1024, nominal=nominal)[0] for k in (few, many))
        return 100 * (1 - more / less)

    figures = [
        (f"{name}, {gpus:,} GPUs: K = 256 over ideal", paper, over_ideal(name, False), over_ideal(name, True))
        for name, paper in (("146B", 4.1), ("1T", 0.9))
    ] + [
        (
            f"146B, {gpus:,} GPUs: less time, K {few} to {many}",
            paper,
            saved(few, many, False),
            saved(few, many, True),
        )
        for few, many, paper in ((1, 8, 43.3), (8, 256, 30.6))
    ]
    note = "the paper does not say for how many GPUs; at links' nominal rates "
    return tuple(
        Row(name=f"fig8 {name}", paper=paper, ours=ours, unit="%", note=f"{note}{nominal:.1f}")
        for name, paper, ours, nominal in figures
    )


def _fig_8_plot(name: str) -> Plot:
    batch = MODELS[name][1]
    return Plot(
        name=f"rail-only-fig8-{name.lower()}",
        title=f"Iteration time of GPT-{name} over HB domain size (as Fig. 8)",
        x_label="HB domain size, log2",
        y_label="s",
        series=tuple(
            Series(
                label=f"{gpus:,} GPUs",
                x=tuple(math.log2(size) for size in HB_DOMAINS),
                y=tuple(_iteration_s(name, gpus, size, batch)[0] for size in HB_DOMAINS),
            )
            for gpus in CLUSTERS
        ),
    )


HB_GBPS = (2400, 4800, 7200, 9600)
NIC_GBPS = (100, 200, 300, 400)


def fig_9() -> Outcome:
    """GPT-1T over bandwidth in HB domains and through NICs; the paper's text gives mean improvements."""
    gains = {k: _mean_gains(k) for k in (8, 256)}
    rows = [
        Row(
            name=f"fig9 1T, K = {size}: less time, {what}",
            paper=paper,
            ours=100 * gains[size][index],
            unit="%",
            note="mean over the other bandwidth; 32,768 GPUs, batch 4,096",
        )
        for size, index, what, paper in (
            (8, 0, "HB 2.4 to 9.6 Tbps", 8.0),
            (256, 0, "HB 2.4 to 9.6 Tbps", 13.3),
            (8, 1, "NIC 100 to 400 Gbps", 35.9),
            (256, 1, "NIC 100 to 400 Gbps", 8.0),
        )
    ]
    holds = [gains[256][0] > gains[8][0], gains[8][1] > gains[256][1], *_more_is_never_slower()]
    return Outcome(rows=(*rows, _ordering("fig9", holds)), plots=tuple(_fig_9_plot(k) for k in (8, 256)))


def _mean_gains(size: int) -> tuple[float, float]:
    """Share of time saved by four times the HB bandwidth, and by four times the NIC's."""
    hb = [1 - _at(size, HB_GBPS[-1], nic) / _at(size, HB_GBPS[0], nic) for nic in NIC_GBPS]
    nic = [1 - _at(size, hb_, NIC_GBPS[-1]) / _at(size, hb_, NIC_GBPS[0]) for hb_ in HB_GBPS]
    return sum(hb) / len(hb), sum(nic) / len(nic)


def _at(size: int, hb_gbps: float, nic_gbps: float) -> float:
    return _iteration_s("1T", 32_768, size, 4096, hb_gbps / 8, nic_gbps / 8)[0]


def _more_is_never_slower() -> list[bool]:
    return [
        _at(k, hb, faster) <= _at(k, hb, slower)
        for k in (8, 256)
        for hb in HB_GBPS
        for slower, faster in itertools.pairwise(NIC_GBPS)
    ]


def _ordering(name: str, holds: list[bool]) -> Row:
    ours = 100 * sum(holds) / len(holds)
    return Row(name=f"{name}: orderings that hold", paper=100, ours=ours, unit="%", tolerance=0)


def _fig_9_plot(size: int) -> Plot:
    return Plot(
        name=f"rail-only-fig9-k{size}",
        title=f"Iteration time of GPT-1T, K = {size} (as Fig. 9)",
        x_label="NIC, Gbps",
        y_label="s",
        series=tuple(
            Series(label=f"HB {hb / 1e3} Tbps", x=NIC_GBPS, y=tuple(_at(size, hb, nic) for nic in NIC_GBPS))
            for hb in HB_GBPS
        ),
    )


BATCHES = (256, 512, 1024, 2048, 4096)


def fig_10() -> Outcome:
    """GPT-1T on 32,768 GPUs over batch size: performance relative to the ideal."""
    relative = {
        k: tuple(100 * ideal / ours for ours, ideal in (_iteration_s("1T", 32_768, k, b) for b in BATCHES))
        for k in (8, 64, 256)
    }
    rows = [
        Row(
            name=f"fig10 1T, K = {k}, batch {batch:,}: of ideal",
            paper=paper,
            ours=relative[k][BATCHES.index(batch)],
            unit="%",
        )
        for k, batch, paper in ((8, 256, 65), (8, 4096, 85), (256, 256, 95), (256, 4096, 99))
    ]
    holds = [relative[8][-1] > relative[8][0], relative[256][-1] > relative[256][0]]
    holds += [a <= b for a, b in zip(relative[8], relative[256], strict=True)]
    plot = Plot(
        name="rail-only-fig10b",
        title="GPT-1T relative to the ideal over batch size (as Fig. 10b)",
        x_label="batch, sequences",
        y_label="%",
        series=tuple(Series(label=f"K = {k}", x=BATCHES, y=y) for k, y in relative.items()),
    )
    return Outcome(rows=(*rows, _ordering("fig10", holds)), plots=(plot,))


FIGURES = (
    Experiment(name="rail-only-fig2", title="Rail-only, Figs. 2, 3: traffic of Megatron-LM", run=fig_2_and_3),
    Experiment(name="rail-only-fig4", title="Rail-only, Fig. 4: GPT-1T on 16 domains of 256", run=fig_4),
    Experiment(name="rail-only-fig5", title="Rail-only, Fig. 5: a mixture of experts", run=fig_5),
    Experiment(name="rail-only-fig8", title="Rail-only, Fig. 8: size of HB domains", run=fig_8),
    Experiment(name="rail-only-fig9", title="Rail-only, Fig. 9: bandwidths", run=fig_9),
    Experiment(name="rail-only-fig10", title="Rail-only, Fig. 10: batch size", run=fig_10),
)

"""`meridian network FILE`: collectives, iteration times, fabrics, traffic and failures of a rail network."""

from collections.abc import Iterator
from pathlib import Path

import click

from engine.cluster.fabric import Fabric
from engine.commands.files import folder, write_json
from engine.commands.model_files import with_model
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.network.design import design
from engine.plan.network.matrix import write_matrix
from engine.plan.network.request import NetworkRequest
from engine.plan.network.result import FabricPair, IterationRow, NetworkResult
from engine.plan.network.strategies import PARTS


@click.command("network")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--matrix",
    type=click.Path(path_type=Path),
    help="Write the traffic of every GPU pair as CSV to this file.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json.")
def command(file: str, as_json: bool, matrix: Path | None, out: Path | None) -> None:
    """Design the network inside a data centre: rail-only compared with rail-optimised.

    FILE (JSON or YAML, - for standard input) names GPUs, HB domains and switches, and optionally collectives
    to time and a model to train: a preset, a shape, or a config.json of Hugging Face, its file or folder too.
    """
    request = parse(NetworkRequest, with_model(load_document(file), "model"))
    result = design(request)
    if matrix is not None:
        if result.job is None or result.traffic is None:
            raise InputError("--matrix", str(matrix), "needs a model that fits the first hb_domain")
        write_matrix(result.job, matrix, sum(n for kind, n in result.traffic.pairs.items() if kind != "none"))
    if out is not None:
        write_json(result.as_dict(), folder(out) / "result.json")
    show(as_json, result.as_dict, lambda: lines(request, result))


def lines(request: NetworkRequest, result: NetworkResult) -> Iterator[str]:
    """The readable answer, line by line."""
    if result.collectives:
        yield from _collectives(result)
        yield ""
    if result.iterations:
        yield from _iterations(result)
        yield ""
    yield from _fabrics(result)
    yield from _spares(result)
    yield from _outages(result)
    if result.traffic is not None:
        yield ""
        yield from _traffic(request, result)
    if result.failures:
        yield ""
        yield from _failures(request, result)


def _collectives(result: NetworkResult) -> list[str]:
    rows = [
        (
            each.op,
            number(each.bytes / 1e6, 3),
            str(each.x),
            str(each.y),
            number(each.rail_only_s * 1e3, 4),
            number(each.rail_optimised_s * 1e3, 4),
            number(each.slowdown, 3),
        )
        for each in result.collectives
    ]
    head = ("collective", "size\nMB", "x", "y", "rail-only\nms", "rail-optimised\nms", "slow-down")
    return render(head, rows, left=(0,))


def _iterations(result: NetworkResult) -> Iterator[str]:
    """The table, with a sentence in place of each size of HB domain for which nothing fits."""
    head = [
        "HB\ndomain",
        "TP",
        "PP",
        "DP",
        "v",
        "b",
        "GPUs\nused",
        "iteration\ns",
        "with spines\ns",
        "ideal\ns",
        *(f"{part}\ns" for part in PARTS),
        "MFU\n%",
        "HFU\n%",
        "memory\nGB",
    ]
    yield from render(head, [_iteration(row) for row in result.iterations if row.feasible])
    for row in result.iterations:
        if not row.feasible:
            yield f"HB domain {row.hb_domain}: infeasible: {row.reason}"


def _iteration(row: IterationRow) -> list[str | None]:
    parts = row.parts_s or {}
    whole = (row.hb_domain, row.tp, row.pp, row.dp, row.interleave, row.micro_batch, row.gpus_used)
    return [
        *(str(value) for value in whole),
        *(number(value, 3) for value in (row.iteration_s, row.rail_optimised_s, row.ideal_s)),
        *(number(parts.get(part), 3) for part in PARTS),
        *(number(None if value is None else 100 * value, 1) for value in (row.mfu, row.hfu)),
        number(row.memory_gb_per_gpu, 1),
    ]


def _fabrics(result: NetworkResult) -> list[str]:
    head = (
        "HB\ndomain",
        "fabric",
        "tiers",
        "switches",
        "transceivers",
        "cost\nM$",
        "power\nMW",
        "saves\n% cost",
        "saves\n% power",
    )
    rows = [row for pair in result.fabrics for row in _fabric(pair)]
    return render(head, rows, left=(1,))


def _fabric(pair: FabricPair) -> Iterator[list[str | None]]:
    for name, fabric in (("rail-optimised", pair.rail_optimised), ("rail-only", pair.rail_only)):
        saved = (pair.cost_saving, pair.power_saving) if name == "rail-only" else (None, None)
        yield _fabric_row(pair, name, fabric, *saved)
    if pair.spares is not None:
        name = f"rail-only, {pair.spares.switches:,} spare"
        yield _fabric_row(
            pair, name, pair.spares.rail_only, pair.spares.cost_saving, pair.spares.power_saving
        )


def _fabric_row(
    pair: FabricPair, name: str, fabric: Fabric, cost_saving: float | None, power_saving: float | None
) -> list[str | None]:
    return [
        str(pair.hb_domain),
        name,
        str(fabric.tiers),
        f"{fabric.switches:,}",
        f"{fabric.transceivers:,}",
        number(fabric.cost_usd / 1e6, 2),
        number(fabric.power_w / 1e6, 3),
        *(number(None if share is None else 100 * share, 1) for share in (cost_saving, power_saving)),
    ]


def _spares(result: NetworkResult) -> Iterator[str]:
    for pair in result.fabrics:
        if pair.spares is not None and pair.spares.most is not None:
            most = f"{pair.spares.most:,} spare switches"
            yield f"HB domain {pair.hb_domain}: rail-only costs no more than rail-optimised with up to {most}"


def _outages(result: NetworkResult) -> list[str]:
    head = ("HB\ndomain", "fabric", "failures\na year", "GPU hours\nlost", "replaced\n$", "GPU hours\n$")
    rows = [
        (
            str(pair.hb_domain),
            name,
            number(each.failures, 1),
            number(each.gpu_hours_lost, 1),
            f"{each.replaced_usd:,.0f}",
            f"{each.lost_usd:,.0f}",
        )
        for pair in result.fabrics
        if pair.outages is not None
        for name, each in (
            ("rail-optimised", pair.outages.rail_optimised),
            ("rail-only", pair.outages.rail_only),
        )
    ]
    return ["transceivers that fail", *render(head, rows, left=(1,))] if rows else []


def _traffic(request: NetworkRequest, result: NetworkResult) -> Iterator[str]:
    assert result.traffic is not None
    traffic, total = result.traffic, result.traffic.total_bytes or 1.0
    yield f"traffic of one iteration, HB domain {request.hb_domains[0]}"
    every = max(1, traffic.gpus * (traffic.gpus - 1))
    rows = [
        (
            kind.upper(),
            number(traffic.hb_bytes[kind] / 1e9, 2),
            number(traffic.nic_bytes[kind] / 1e9, 2),
            number(100 * (traffic.hb_bytes[kind] + traffic.nic_bytes[kind]) / total, 2),
            number(100 * traffic.pairs[kind] / every, 4) if kind in traffic.pairs else None,
        )
        for kind in traffic.hb_bytes
    ]
    yield from render(("", "HB\nGB", "NIC\nGB", "of bytes\n%", "of pairs\n%"), rows, left=(0,))
    yield f"{100 * traffic.pairs['none'] / every:.4f} % of the ordered GPU pairs carry no traffic"


def _failures(request: NetworkRequest, result: NetworkResult) -> Iterator[str]:
    yield f"after a failure, HB domain {request.hb_domains[0]}"
    rows = [
        (
            each.case,
            each.design.replace("_", "-"),
            str(each.gpus_lost),
            number(each.iteration_s, 3),
            number(each.slowdown, 3),
            str(each.spares),
            number(each.spared_iteration_s, 3),
            each.recovery,
        )
        for each in result.failures
    ]
    head = (
        "failure of",
        "design",
        "GPUs\nlost",
        "iteration\nwithout spares, s",
        "slow-down",
        "spares\nneeded",
        "iteration\nwith them, s",
        "recovery",
    )
    yield from render(head, rows, left=(0, 1, 7))

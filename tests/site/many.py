"""Rows by the thousand for the tests of lists, the benchmark of lists and the pictures of the pages.

`fill(world, range(n))` gives the team of `world` n rows of everything that a page lists, and a fill with
range(n, m) adds to them. A new kind of list wants a line in FILLERS. Rows are made in bulk, by their number.
"""

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, islice
from typing import Any

from django.db import connection
from django.utils import timezone

from tests.site.computations import comparison, placement
from tests.site.replays import answered
from tests.site.tenancies import MODEL
from tests.site.traces import trace
from tests.site.world import World
from webapp.accounts.models import AuditEntry, Invitation, Membership, Role, Team, User
from webapp.computations import liveness
from webapp.computations.models import Beat, Computation, ComputationState
from webapp.inventory.models import DataCenter, Device, GpuPool, JoinToken, LinkMeasurement, Node, WanLink
from webapp.jobs.models import (
    TERMINAL,
    CheckpointStatus,
    Desired,
    Job,
    MarkLevel,
    RankState,
    Run,
    RunCheckpoint,
    RunEvent,
    Status,
)
from webapp.live.models import IterationStat, LogLine, SpanBatch
from webapp.planning.models import Plan
from webapp.prefill.models import ApiKey, Notice, Tenancy, TenancyPlace, UsageEvent, charge_of
from webapp.traces.models import Trace

PLACES = (
    ("us-east", "Ashburn, Virginia", 39.04, -77.49),
    ("us-central", "Council Bluffs, Iowa", 41.26, -95.86),
    ("us-west", "The Dalles, Oregon", 45.59, -121.18),
    ("eu-north", "Stockholm", 59.33, 18.07),
    ("eu-west", "Dublin", 53.35, -6.26),
    ("ap-south", "Mumbai", 19.08, 72.88),
    ("sa-east", "São Paulo", -23.55, -46.63),
    ("ap-northeast", "Tokyo", 35.68, 139.69),
    ("af-south", "Cape Town", -33.92, 18.42),
    ("ap-southeast", "Sydney", -33.87, 151.21),
)
GPU_TYPES = ("a100-80g", "h100", "a100-40g", "v100")
WORDS = (
    "gpt-7b",
    "vit-22b",
    "llama-8b",
    "moe-probe",
    "llama-70b",
    "rerank-1b",
    "speech-3b",
    "gpt-a",
    "gpt-b",
)
PEOPLE = ("ada", "grace", "alan", "edsger", "barbara", "donald", "leslie", "frances", "tony", "radia")
BUYERS = ("Fathom Search", "Kestrel AI", "Halden Labs", "Orrery", "Quill & Co", "Tessera")
VERBS = ("create", "change", "delete", "launch", "cancel", "enrol")


def _name(words: tuple[Any, ...], i: int) -> str:
    word = words[i % len(words)]
    first = word if isinstance(word, str) else word[0]
    return f"{first}-{i // len(words) + 1}"


def _ago(i: int, minutes: float = 7) -> datetime:
    return timezone.now() - timedelta(minutes=minutes * i + 1)


def datacenters(world: World, numbers: range) -> None:
    for dc, (_, place, latitude, longitude) in zip(world.dcs, PLACES, strict=False):
        DataCenter.objects.filter(pk=dc.pk).update(place=place, latitude=latitude, longitude=longitude)
        GpuPool.objects.filter(dc=dc).update(price_per_gpu_hour="2.10")
    rows = DataCenter.objects.bulk_create(
        DataCenter(
            team=world.team,
            name=_name(PLACES, i),
            place=PLACES[i % len(PLACES)][1],
            intra_gbps=(100, 200, 400)[i % 3],
            latitude=PLACES[i % len(PLACES)][2] + i // len(PLACES) % 7,
            longitude=PLACES[i % len(PLACES)][3] + i // len(PLACES) % 11,
        )
        for i in numbers
    )
    GpuPool.objects.bulk_create(
        GpuPool(dc=dc, gpu_type=GPU_TYPES[i % 4], price_per_gpu_hour=f"{1.5 + i % 13 / 10:.2f}")
        for i, dc in zip(numbers, rows, strict=True)
    )


def nodes(world: World, numbers: range) -> None:
    """Every other node in the world's first data centre: its page has a long list too."""
    pools = list(GpuPool.objects.filter(dc__team=world.team).order_by("pk"))
    here = next(pool for pool in pools if pool.dc_id == world.dcs[0].pk)
    now = timezone.now()  # whoever looks at the pages gives nodes hours to be silent (NODE_SILENT_AFTER_S)
    silent_since = {7: now - timedelta(days=3), 19: None}
    Node.objects.bulk_create(
        Node(
            dc_id=(pool := here if i % 2 else pools[i % min(len(pools), 13)]).dc_id,
            pool=pool,
            name=f"node-{i:04}",
            gpus=(8, 4, 16)[i % 3],
            device=Device.CUDA,
            host=f"10.{i // 65536}.{i // 256 % 256}.{i % 256}",
            acl_sha256="0" * 64,
            enrolled_at=_ago(i),
            last_seen=silent_since.get(i % 40, now),
            version="0.1.0",
            seen_gpus=(8, 4, 16)[i % 3],
        )
        for i in numbers
    )


def join_tokens(world: World, numbers: range) -> None:
    """One of the world's first node each: commands are made one after the other, but lists must bear many."""
    JoinToken.objects.bulk_create(
        JoinToken(
            node=world.nodes[0],
            token_sha256=f"{i:064}",
            created_by=world.users["admin"],
            expires_at=timezone.now() + timedelta(hours=12),
        )
        for i in numbers
    )


def links(world: World, numbers: range) -> None:
    known = set(WanLink.objects.filter(a__team=world.team).values_list("a_id", "b_id"))
    places = DataCenter.objects.filter(team=world.team).order_by("pk").values_list("pk", flat=True)
    pairs = (pair for pair in combinations(places, 2) if pair not in known)
    WanLink.objects.bulk_create(
        WanLink(
            a_id=a,
            b_id=b,
            latency_ms=5 + i * 7 % 180,
            bandwidth_gbps=(1.0, 2.4, 5.0, 10.0)[i % 4],
            egress_price_per_gb="0.02",
        )
        for i, (a, b) in enumerate(islice(pairs, len(numbers)))
    )


def plans(world: World, numbers: range) -> None:
    rows = Plan.objects.bulk_create(
        Plan(
            team=world.team,
            name=f"{_name(WORDS, i)}-plan",
            request=world.plan.request,
            result=world.plan.result,
            training=world.plan.training,
            computed_ms=40 + i % 900,
            created_by=world.users["operator"],
        )
        for i in numbers
    )
    for i, plan in zip(numbers, rows, strict=True):
        plan.created_at = _ago(i, 31)
    Plan.objects.bulk_update(rows, ["created_at"], batch_size=500)


def computations(world: World, numbers: range) -> None:
    Computation.objects.bulk_create(
        Computation(
            team=world.team,
            kind=old.kind,
            name=f"{_name(WORDS, i)} {old.kind}",
            request=old.request,
            answer=old.answer,
            state=(ComputationState.DONE, ComputationState.CANCELLED)[i % 7 == 0],
            created_by=world.users["operator"],
            started_at=_ago(i),
            finished_at=_ago(i),
        )
        for old in (comparison(world), placement(world))
        for i in numbers
    )


def traces(world: World, numbers: range) -> None:
    done = trace(world)
    rows = Computation.objects.bulk_create(
        Computation(
            team=world.team,
            kind=done.kind,
            name=f"{_name(WORDS, i)} trace",
            request=done.request,
            answer=done.answer,
            state=ComputationState.DONE,
            created_by=world.users["operator"],
            started_at=_ago(i),
            finished_at=_ago(i),
        )
        for i in numbers
    )
    Trace.objects.bulk_create(
        Trace(computation=each, bytes=7_000 * (i % 20 + 1), format="kineto", workers=8 * (i + 1), steps=5)
        for i, each in zip(numbers, rows, strict=True)
    )


def replays(world: World, numbers: range) -> None:
    done = answered(world)
    Computation.objects.bulk_create(
        Computation(
            team=world.team,
            kind=done.kind,
            name=f"{_name(WORDS, i)} replay",
            request=done.request,
            answer=done.answer,
            state=ComputationState.DONE,
            created_by=world.users["operator"],
            started_at=_ago(i),
            finished_at=_ago(i),
        )
        for i in numbers
    )


def runs(world: World, numbers: range) -> None:
    """Half of them launched from the world's plan: its page has a long list too."""
    first = _first_run(world)
    plans_of = list(Plan.objects.filter(team=world.team).order_by("pk")[:1000])
    jobs = Job.objects.bulk_create(
        Job(
            team=world.team,
            name=_name(WORDS, i),
            document=first.job.document,
            created_by=world.users["operator"],
            plan=world.plan if i % 2 else plans_of[i % len(plans_of)],
        )
        for i in numbers
    )
    rows = Run.objects.bulk_create(_run(first, job, i) for i, job in zip(numbers, jobs, strict=True))
    for i, run in zip(numbers, rows, strict=True):
        run.created_at = _ago(i, 17)
    Run.objects.bulk_update(rows, ["created_at"], batch_size=500)
    sent = [run for run in rows if run.started_at]  # between the first two data centres: over their link
    RankState.objects.bulk_create(
        RankState(
            run=run,
            rank=rank,
            pipeline=0,
            stage=rank,
            dc=node.dc,
            node=node,
            gpu=0,
            state="finished",
            state_since=run.created_at,
        )
        for run in sent
        for rank, node in enumerate(world.nodes[:2])
    )


REASONS = {
    Status.FAILED: "P1 S3 on node-0007: the connection to P1 S4 was lost after 41 s without an answer.",
    Status.CANCELLED: "Stopped by operator.",
}


def _run(first: Run, job: Job, i: int) -> Run:
    status = (Status.RUNNING, Status.QUEUED, *TERMINAL)[i % 5] if i < 10 else TERMINAL[i % 3]
    over, started = status in TERMINAL, status != Status.QUEUED
    return Run(
        job=job,
        generation=1,
        status=status,
        status_since=_ago(i),
        steps=20_000,
        secret="s",
        predicted=first.predicted,
        desired_state=Desired.CANCELLED if status == Status.CANCELLED else Desired.RUNNING,
        iteration=-1 if not started else (19_999 if status == Status.SUCCEEDED else 37 * i % 20_000),
        status_reason=REASONS.get(status, ""),
        waits_for="" if started else "16 GPUs in eu-north-1, 10 are idle",
        started_at=_ago(i, 16) if started else None,
        finished_at=_ago(i, 15) if over else None,
        created_by_id=first.created_by_id,
    )


def people(world: World, numbers: range) -> None:
    rows = User.objects.bulk_create(
        User(username=_name(PEOPLE, i), email=f"{_name(PEOPLE, i)}@research.example", password="!")
        for i in numbers
    )
    roles = (Role.VIEWER, Role.OPERATOR, Role.VIEWER, Role.TENANT, Role.ADMIN)
    Membership.objects.bulk_create(
        Membership(user=user, team=world.team, role=roles[i % len(roles)])
        for i, user in zip(numbers, rows, strict=True)
    )


def teams(world: World, numbers: range) -> None:
    """The world's admin administers them all."""
    rows = Team.objects.bulk_create(Team(name=f"Team {i:04}") for i in numbers)
    Membership.objects.bulk_create(
        Membership(user=world.users["admin"], team=team, role=Role.ADMIN) for team in rows
    )


def invitations(world: World, numbers: range) -> None:
    """A third open, a third accepted, a third expired."""
    now = timezone.now()
    Invitation.objects.bulk_create(
        Invitation(
            team=world.team,
            email=f"{_name(PEOPLE, i)}.{i}@research.example",
            role=Role.VIEWER,
            token_sha256=f"{i:064x}",
            invited_by=world.users["admin"],
            expires_at=now + timedelta(days=7 if i % 3 else -1),
            accepted_at=now if i % 3 == 1 else None,
            accepted_by=world.users["viewer"] if i % 3 == 1 else None,
        )
        for i in numbers
    )


def measurements(world: World, numbers: range) -> None:
    """Of the world's link, an hour apart."""
    LinkMeasurement.objects.bulk_create(
        LinkMeasurement(
            link=world.link,
            at=_ago(i, 60),
            latency_ms=10 + math.sin(i / 5),
            bandwidth_gbps=1 - 0.1 * math.cos(i / 7),
            connections=24,
            source=("probe", "run")[i % 2],
        )
        for i in numbers
    )


def audit(world: World, numbers: range) -> None:
    rows = AuditEntry.objects.bulk_create(
        AuditEntry(
            actor=world.users[("operator", "admin")[i % 2]],
            team=world.team,
            verb=VERBS[i % len(VERBS)],
            object_type="datacenter",
            object_id=str(world.dcs[i % 3].pk),
            object_label=world.dcs[i % 3].name,
            before={"price_per_gpu_hour": "2.10", "place": "The Dalles"},
            after={"price_per_gpu_hour": "2.25", "place": "The Dalles, Oregon"},
            request_id=f"{i:032x}",
            message="" if i % 3 else "Price of the new contract",
        )
        for i in numbers
    )
    for i, entry in zip(numbers, rows, strict=True):
        entry.at = _ago(i, 3)
    AuditEntry.objects.bulk_update(rows, ["at"], batch_size=500)


def tenancies(world: World, numbers: range) -> None:
    """Half of them active, a third waiting, and some that were refused, suspended or are over."""
    now = timezone.now()
    statuses = ("active", "requested", "active", "requested", "active", "refused", "suspended", "ended")
    common = {
        "team": world.team,
        "tenant": world.users["tenant"],
        "model": MODEL,
        "asked_ttft_ms": 2000,
        "asked_days": 90,
        "typical_prompt": 1024,
        "asked_longest_prompt": 4096,
    }
    rows = []
    for i in numbers:
        status = statuses[i % len(statuses)]
        granted = {
            "tokens_per_min": 20_000 + 10_000 * (i % 7),
            "ttft_ms": 2000,
            "longest_prompt": 4096,
            "price": 40_000 + 5_000 * (i % 5),
            "starts_at": now - timedelta(days=40),
            "ends_at": now + timedelta(days=-2 if status == "ended" else 20 + i % 60),
        }
        decided = {"decided_by": world.users["admin"], "decided_at": now - timedelta(days=40)}
        held = granted if status in ("active", "suspended", "ended") else {}
        rows.append(
            Tenancy(
                name=f"{_name(BUYERS, i)}",
                purpose="search answers",
                status=status,
                asked_tokens_per_min=30_000 + 10_000 * (i % 7),
                reason="No supply there before the next run." if status == "refused" else "",
                **common,
                **held,
                **({} if status == "requested" else decided),
            )
        )
    rows = Tenancy.objects.bulk_create(rows)
    TenancyPlace.objects.bulk_create(
        TenancyPlace(tenancy=one, dc=world.dcs[i % 2], is_granted=bool(one.tokens_per_min))
        for i, one in zip(numbers, rows, strict=True)
    )
    Notice.objects.bulk_create(
        Notice(user=world.users[name], tenancy=one, text=f"{one} was decided.")
        for one in rows[:20]
        for name in ("tenant", "admin")
    )


def api_keys(world: World, numbers: range) -> None:
    """Of the first tenancy; two work, the others were revoked."""
    tenancy = Tenancy.objects.in_force().order_by("pk")[0]
    now = timezone.now()
    ApiKey.objects.bulk_create(
        ApiKey(
            tenancy=tenancy,
            name=("search", "batch", "eval")[i % 3],
            prefix=f"mrd-{i:06d}",
            sha256=f"{i:064x}",
            created_by=world.users["tenant"],
            revoked_at=None if i < 2 else now - timedelta(days=i),
            used_at=now - timedelta(minutes=i),
        )
        for i in numbers
    )


def usage(world: World, numbers: range) -> None:
    """A delivered request every few minutes, and one refused in eleven."""
    tenancy = Tenancy.objects.in_force().order_by("pk")[0]
    assert tenancy.price is not None
    UsageEvent.objects.bulk_create(
        UsageEvent(
            request_id=f"{i:032x}",
            tenancy=tenancy,
            dc=world.dcs[i % 2],
            at=_ago(i, 11),
            outcome="delivered" if i % 11 else "refused",
            reason="" if i % 11 else ("no_bubble", "ttft")[i % 2],
            prompt_tokens=(tokens := 200 + i * 137 % 3800),
            ttft_ms=60 + 0.14 * tokens if i % 11 else None,
            ttft_objective_ms=tenancy.ttft_ms,
            price=tenancy.price,
            charge=charge_of(tokens, tenancy.price) if i % 11 else 0,
        )
        for i in numbers
    )


def _first_run(world: World) -> Run:
    """The run that the world's plan was launched as."""
    return Run.objects.filter(job__name=world.plan.name).order_by("pk").first() or world.launch()


def watched(world: World, numbers: range) -> None:
    """The first run, training: its ranks, an iteration a number, log lines and marks, the last spans."""
    train(world, _first_run(world), numbers)


def train(world: World, run: Run, numbers: range, *, batches: int = 12) -> None:
    """Let `run` have made an iteration a number, with the spans of the last `kept`."""
    n = numbers.stop
    length_s = run.predicted["iteration_ms"] / 1e3 * 1.06
    if run.epoch is None:
        place_ranks(world, run)
        run.epoch = time.time() - n * length_s
    Run.objects.filter(pk=run.pk).update(
        status=Status.RUNNING,
        steps=20_000,
        iteration=n - 1,
        epoch=run.epoch,
        started_at=datetime.fromtimestamp(run.epoch, tz=UTC),
        status_reason="",
        waits_for="",
    )
    IterationStat.objects.bulk_create(_stats(run, numbers, length_s))
    SpanBatch.objects.bulk_create(_spans(run, numbers[-batches:], length_s), batch_size=1000)
    LogLine.objects.bulk_create(
        LogLine(run=run, rank=i % 12, seq=i, at=_ago(n - i, length_s / 60), text=f"iteration {i}: trained")
        for i in numbers
    )
    RunCheckpoint.objects.bulk_create(
        RunCheckpoint(
            run=run,
            step=10 * i,
            status=CheckpointStatus.SAVED if i > n - 4 else CheckpointStatus.REMOVED,
            where=f"/srv/checkpoints/step-{10 * i:09d}-5ac1f09e",
            size=1_400_000_000,
            took_s=2.4,
            at=_ago(n - i, length_s / 6),
        )
        for i in numbers
    )
    marks = ((MarkLevel.INFO, "All 12 ranks are ready."), (MarkLevel.WARN, "west-1 was silent for 12 s."))
    RunEvent.objects.bulk_create(
        RunEvent(
            run=run, seq=1000 + i, at=_ago(n - i, 1), level=marks[i % 9 == 0][0], text=marks[i % 9 == 0][1]
        )
        for i in numbers[-50:]
    )


def place_ranks(world: World, run: Run) -> None:
    dc_of_stage = run.job.document["cell"]["dc_of_stage"]
    stages = len(dc_of_stage)
    used = dict.fromkeys(range(len(world.dcs)), 0)
    rows = []
    for rank in range(stages * run.job.document["cell"]["pipelines"]):
        dc = dc_of_stage[rank % stages]
        rows.append(
            RankState(
                run=run,
                rank=rank,
                pipeline=rank // stages,
                stage=rank % stages,
                dc=world.dcs[dc],
                node=world.nodes[dc],
                gpu=used[dc],
                state="running",
                state_since=_ago(1),
                last_line=f"rank {rank} trains",
            )
        )
        used[dc] += 1
    RankState.objects.bulk_create(rows)


def _stats(run: Run, numbers: range, length_s: float) -> Iterator[IterationStat]:
    assert run.epoch is not None
    utilization = run.predicted["utilization"]
    busy, sent = _busy(run), _sent(run)
    for i in numbers:
        wave = math.sin(i / 9) / 50
        yield IterationStat(
            run=run,
            iteration=i,
            start=run.epoch + i * length_s,
            end=run.epoch + (i + 1) * length_s,
            loss=1.8 + 3.4 * math.exp(-i / 250) + wave,
            bits_per_byte=(1.8 + 3.4 * math.exp(-i / 250) + wave) / 3.1,  # of tokens of 4.5 bytes
            validation_loss=1.9 + 3.4 * math.exp(-i / 250) if i % 100 == 99 else None,
            validation_bits_per_byte=(1.9 + 3.4 * math.exp(-i / 250)) / 3.1 if i % 100 == 99 else None,
            grad_norm=1 + 3 / (1 + i / 40) + wave,
            learning_rate=3e-4,
            tokens=8192,
            ranks=12,
            utilization=utilization + wave,
            busy_s=busy,
            sync_s=dict.fromkeys(busy, 0.0),
            traffic={
                rank: [
                    [a, b, size, x + i * length_s * 1e3, y + i * length_s * 1e3] for a, b, size, x, y in rows
                ]
                for rank, rows in sent.items()
            },
            dc_utilization=[utilization + wave * k for k in range(3)],
        )


def _busy(run: Run) -> dict[str, float]:
    """Seconds of an iteration that each rank computes."""
    return {
        str(rank): sum(code[3] - code[2] for code in codes if code[0] in "FRBW") / 1e3
        for rank, *codes in run.predicted["spans"]
    }


def _sent(run: Run) -> dict[str, list[list[float]]]:
    """[from data centre, to data centre, bytes, start, end] of what each rank sends over the WAN."""
    dc = run.job.document["cell"]["dc_of_stage"]
    size = run.job.document["cell"]["activation_bytes"]
    return {
        str(rank): [
            [dc[code[5]], dc[code[6]], size, code[2] * 1.06, code[3] * 1.06]
            for code in codes
            if code[0] == "T" and dc[code[5]] != dc[code[6]]
        ]
        for rank, *codes in run.predicted["spans"]
    }


def _spans(run: Run, numbers: range, length_s: float) -> Iterator[SpanBatch]:
    """The predicted spans of the last iterations, as if they had been measured."""
    assert run.epoch is not None
    for i in numbers:
        for rank, *codes in run.predicted["spans"]:
            start = run.epoch + i * length_s
            yield SpanBatch(
                run=run,
                generation=run.generation,
                rank=rank,
                iteration=i,
                start=start,
                end=start + length_s,
                spans=[_moved(code, i * length_s * 1e3) for code in codes],
            )


def _moved(code: list[Any], by_ms: float) -> list[Any]:
    moved = list(code)
    for place in (2, 3, 4) if code[0] == "T" else (2, 3):
        moved[place] = round(code[place] * 1.06 + by_ms, 3)
    return [*moved, 5_000_000] if code[0] == "T" and len(code) == 8 else moved


FILLERS: tuple[Callable[[World, range], None], ...] = (
    computations,  # first: they ask about the data centres that there are
    traces,
    replays,
    datacenters,
    nodes,
    join_tokens,
    links,
    plans,
    runs,
    people,
    invitations,
    measurements,
    audit,
    tenancies,
    api_keys,
    usage,
    watched,
)


def beat_on(world: World) -> None:
    """Ingest listens, for as long as anybody looks."""
    liveness.beat()
    Beat.objects.update(at=timezone.now() + timedelta(days=1), since=timezone.now() - timedelta(hours=1))


def fill(world: World, numbers: range) -> None:
    """A row of everything that a page lists, for each of `numbers`; `teams` is for whoever wants them too."""
    for filler in FILLERS:
        filler(world, numbers)
    # As autovacuum does within a minute; it cannot see rows of a transaction that is open, and plans made
    # for empty tables take minutes on full ones.
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

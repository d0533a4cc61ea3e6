"""What the agent of a node reports: of itself, and what single tasks of the site asked it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.job.events.base import BaseEvent, LeftOut, Number, Ordinal, Part, Text, Unix, Yes
from engine.job.events.training import RankState


class NodeRank(Part):
    """A rank as the agent of its node knows it."""

    run: Annotated[Text, Field(max_length=100)]
    generation: Ordinal
    rank: Ordinal
    pid: Ordinal | None = None
    state: RankState


class Clock(Part):
    """The clock of a node against the broker's."""

    offset_ms: Number
    """By how much it is ahead, ms."""
    rtt_ms: Annotated[float, Field(strict=True, ge=0, lt=1e6)]
    """Round trip to the broker, ms."""


class Heartbeat(BaseEvent):
    """The agent of a node lives; every 2 s."""

    key = ("node",)
    kind: Literal["heartbeat"] = "heartbeat"
    t: Unix
    """When."""
    gpus: Annotated[int, Field(strict=True, ge=0, le=1024)]
    """GPUs that the agent may use."""
    device: Text
    """cpu, emulated or cuda."""
    version: Text
    """Version of the agent."""
    ranks: Annotated[tuple[NodeRank, ...], Field(max_length=1024)]
    """Ranks that live or ended lately: {run, generation, rank, pid, state}."""
    clock: Clock | None = None
    """Its clock: `offset_ms` by which it is ahead of the broker's, `rtt_ms` to there; null if unknown."""
    hardware: LeftOut[dict[str, Any]] = None
    """At times: what the machine has (workers/hardware.py)."""
    lost: Annotated[int, Field(strict=True, ge=0, lt=2**62)] = 0
    """Spans and log lines that this agent dropped since its start."""


class PeerAnswer(Part):
    """Whether a node reached another one."""

    node: Text
    ok: Yes
    rtt_ms: Annotated[Number, Field(ge=0)] | None = None
    """Median round trip."""
    connect_ms: Annotated[Number, Field(ge=0)] | None = None
    offset_ms: Number | None = None
    """Clock of the node that asks minus that of the other."""
    error: Text = ""


class Probe(BaseEvent):
    """Answer to `workers.probe_peers`: which nodes this one reaches."""

    key = ("probe", "node")
    kind: Literal["probe"] = "probe"
    probe: Text
    """Id of the question."""
    results: Annotated[tuple[PeerAnswer, ...], Field(max_length=256)]
    """For each node: {node, ok, rtt_ms, connect_ms, offset_ms, error}."""
    t: Unix
    """When."""


class LinkRate(Part):
    """What a number of TCP connections carry together in one direction."""

    connections: Ordinal
    gbps: Annotated[float, Field(strict=True, ge=0, le=1e5)]


class Rates(BaseEvent):
    """Answer to `workers.measure_link`: how wide a link is."""

    key = ("trial",)
    kind: Literal["rates"] = "rates"
    trial: Text
    """Id of the measurement."""
    rtt_ms: Annotated[Number, Field(ge=0)] | None
    """Median round trip; null if it failed."""
    rates: Annotated[tuple[LinkRate, ...], Field(max_length=64)]
    """By number of TCP connections: {connections, gbps}."""
    error: Text = ""
    """Why it failed."""
    t: Unix
    """When."""


MOST_SAMPLES = 4
MOST_PARTS = 200  # of a sample
MOST_CHARACTERS = 4_000  # of a sample


class ShownPart(Part):
    """A run of tokens of one document that a loss counts, or does not."""

    document: Ordinal | None
    """Number of the document in its source; null if that is not known."""
    counts: Yes
    """Whether a loss counts the tokens."""
    tokens: Ordinal
    text: Annotated[Text, Field(max_length=MOST_CHARACTERS)]


class ShownSample(Part):
    """A sequence that a run would read."""

    source: Annotated[Text, Field(max_length=1_000)]
    """File or folder."""
    parts: Annotated[tuple[ShownPart, ...], Field(max_length=MOST_PARTS)]
    """{document, counts, tokens, text}, in order."""
    cut: Yes
    """Whether the sequence goes on after the parts."""


class Samples(BaseEvent):
    """Answer to `workers.preview_samples`: the first samples of a run, decoded."""

    key = ("preview",)
    kind: Literal["samples"] = "samples"
    preview: Text
    """Id of the question."""
    samples: Annotated[tuple[ShownSample, ...], Field(max_length=MOST_SAMPLES)]
    """Of step 0, in the order of the global batch: {source, parts, cut}."""
    error: Annotated[Text, Field(max_length=2_000)] = ""
    """Why there are none."""
    t: Unix
    """When."""


NodeEvent = Heartbeat | Probe | Rates | Samples

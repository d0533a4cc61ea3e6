"""The start of a rank."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.control.pulse import Pulses
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.swap.planned import SwapPlan
from engine.schedule.ir import Schedule
from engine.train.boundary import Flag
from engine.train.corpus import Corpus
from engine.train.recovery.cuts import Cuts
from engine.train.recovery.resume import ResumeState

Die = Callable[[BaseException], None]  # ends the process with an error; threads call it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The data that the host passes to a rank when it forks it: by strategy, a schedule or a swap plan."""

    spec: LaunchSpec
    me: RankAssignment
    schedule: Schedule | None
    plan: SwapPlan | None
    corpus: Corpus
    port: int
    listen_fd: int | None
    events_fd: int
    began: float  # Unix time at which the host began
    stop_flag: Flag  # one byte that the host sets to end the run at an iteration boundary
    kept: ResumeState | None = None  # of a run that recovers
    cuts: Cuts | None = None
    pulses: Pulses | None = None  # where the host watches over it

"""The constraint model of `optimal`: start times of ops and transfers, and literals for open orders.

One idea: the order of most pairs of ops on a GPU is known beforehand (`Problem.precedes`). Each other pair
has one literal, which implies the times and, for ops of one chain, the literals of adjacent pairs. The
intervals of a GPU are in a no-overlap constraint as well, for its energetic reasoning.
"""

from collections.abc import Callable, Iterable
from itertools import combinations

from ortools.sat.python import cp_model

from engine.schedule.ir import OpKind
from engine.schedule.optimal_problem import OpKey, Problem, TransferKey

F, R, B, W = OpKind.F, OpKind.R, OpKind.B, OpKind.W
Literal = cp_model.LiteralT


# Building this many takes some milliseconds.
PAIRS_BETWEEN_ASKING = 2_000


class NotBuiltError(Exception):
    """The search ended while its model was being built."""


class OptimalModel:
    """The model and its variables.

    start : of each op.  sent : start of each transfer that may have to wait for its link.  elided : whether
    an R is left out, as B is the very next op after F.  first, turn : the literal "one before the other" of
    each pair of ops, and of transfers, whose order is open.
    """

    def __init__(
        self, problem: Problem, *, least: int, most: int, stopped: Callable[[], object] = lambda: None
    ) -> None:
        """Builds the model for makespans from `least` to `most` units.

        Raises NotBuiltError as soon as `stopped`, called now and then, returns a reason.
        """
        self.problem, self.most = problem, most
        self._stopped, self._pairs = stopped, 0
        self.model = cp_model.CpModel()
        self.makespan = self.model.new_int_var(least, most, "")
        self.start: dict[OpKey, cp_model.IntVar] = {}
        self.sent: dict[TransferKey, cp_model.IntVar] = {}
        self.elided: dict[OpKey, cp_model.IntVar] = {}
        self.first: dict[tuple[OpKey, OpKey], cp_model.IntVar] = {}
        self.turn: dict[tuple[TransferKey, TransferKey], cp_model.IntVar] = {}
        for pipeline in range(problem.pipelines):
            for position in range(problem.positions):
                self._add_position(pipeline, position)
        for pipeline in range(problem.pipelines):
            for stage in range(problem.traversal.stages):
                self._add_gpu(pipeline, stage)
        for edge in range(problem.positions - 1):
            self._add_edge(edge)
        for direction in range(2):
            for hop in range(problem.traversal.stages):
                self._add_link(direction, hop)
        self._break_symmetry()
        self.model.minimize(self.makespan)

    def hint(self, start: dict[OpKey, int], sent: dict[TransferKey, int]) -> None:
        """Gives the solver a schedule to start from. An R that `start` lacks is elided."""
        for key, begin in self.start.items():
            self.model.add_hint(begin, start.get(key, start[F, *key[1:]]))
        for transfer, sending in self.sent.items():
            self.model.add_hint(sending, sent[transfer])
        for key, literal in self.elided.items():
            self.model.add_hint(literal, key not in start)
        for (one, other), literal in self.first.items():
            if one in start and other in start:
                self.model.add_hint(literal, start[one] < start[other])
        for (sooner, later), literal in self.turn.items():
            self.model.add_hint(literal, sent[sooner] < sent[later])

    def _add_position(self, pipeline: int, position: int) -> None:
        """Variables of one position, its chains, and the sequence of a microbatch's ops there."""
        problem, add = self.problem, self.model.add
        kinds = (*problem.kinds, R) if problem.recomputes(position) else problem.kinds
        for kind in kinds:
            length = problem.length(kind, position)
            for m in range(problem.microbatches):
                key = (kind, pipeline, position, m)
                self.start[key] = self.model.new_int_var(0, self.most, "")
                add(self.start[key] + length <= self.makespan)
                if m > 0 and kind != R:
                    add(self.start[key] >= self.end((kind, pipeline, position, m - 1)))
        for m in range(problem.microbatches):
            forward, again, backward, weight = ((kind, pipeline, position, m) for kind in OpKind)
            add(self.start[backward] >= self.end(forward))
            if problem.split:
                add(self.start[weight] >= self.end(backward))
            if again in self.start:
                self.elided[again] = self.model.new_bool_var("")
                add(self.start[again] >= self.end(forward))
                add(self.end(again) <= self.start[backward]).only_enforce_if(~self.elided[again])
            self._limit_position(pipeline, position, m)

    def end(self, key: OpKey) -> cp_model.LinearExpr:
        kind, _, position, _ = key
        return self.start[key] + self.problem.length(kind, position)

    def _limit_position(self, pipeline: int, position: int, m: int) -> None:
        """F(m) waits for the end of m − held, and full sets likewise: the limits of one position."""
        problem = self.problem
        held, full = problem.limits_of(problem.stage(position))
        if m >= held:
            gone = (problem.closing, pipeline, position, m - held)
            self.model.add(self.start[F, pipeline, position, m] >= self.end(gone))
        if m < full or not problem.recomputes(position):
            return
        gone = (problem.closing, pipeline, position, m - full)
        again = (R, pipeline, position, m)
        elided = self.elided[again]
        self.model.add(self.start[again] >= self.end(gone)).only_enforce_if(~elided)
        self.model.add(self.start[F, pipeline, position, m] >= self.end(gone)).only_enforce_if(elided)

    def _add_gpu(self, pipeline: int, stage: int) -> None:
        """One op at a time on a GPU; limits over all chunks of its stage."""
        keys = self._keys_on(pipeline, stage)
        intervals = []
        for key in keys:
            length = self.problem.length(key[0], key[2])
            present = ~self.elided[key] if key in self.elided else True
            intervals.append(
                self.model.new_optional_fixed_size_interval_var(self.start[key], length, present, "")
            )
        self.model.add_no_overlap(intervals)
        for one, other in combinations(keys, 2):
            self._add_pair(one, other)
        for one, other in combinations(keys, 2):
            self._link_pair(one, other)
        for key in keys:
            if key in self.elided:
                self._add_elision(key, keys)
        if self.problem.traversal.chunks > 1:
            self._limit_stage(pipeline, stage)

    def _keys_on(self, pipeline: int, stage: int) -> list[OpKey]:
        return [
            (kind, pipeline, position, m)
            for position in self.problem.positions_on(stage)
            for kind in OpKind
            for m in range(self.problem.microbatches)
            if (kind, pipeline, position, m) in self.start
        ]

    def _add_pair(self, one: OpKey, other: OpKey) -> None:
        """A literal for a pair of ops whose order is open; an elided R takes no part."""
        self._pairs += 1
        if self._pairs % PAIRS_BETWEEN_ASKING == 0 and self._stopped() is not None:
            raise NotBuiltError
        known = self.problem.precedes(one, other)
        unless = [~self.elided[key] for key in (one, other) if key in self.elided]
        if known is not None:
            if unless:
                before, after = (one, other) if known else (other, one)
                self.model.add(self.start[after] >= self.end(before)).only_enforce_if(unless)
            return
        literal = self.first[one, other] = self.model.new_bool_var("")
        self.model.add(self.start[other] >= self.end(one)).only_enforce_if([literal, *unless])
        self.model.add(self.start[one] >= self.end(other)).only_enforce_if([~literal, *unless])

    def before(self, one: OpKey, other: OpKey) -> Literal:
        """The literal "`one` runs before `other`", or a bool if the order is known."""
        if (one, other) in self.first:
            return self.first[one, other]
        if (other, one) in self.first:
            return ~self.first[other, one]
        return bool(self.problem.precedes(one, other))

    def _link_pair(self, one: OpKey, other: OpKey) -> None:
        """If m runs before n of another kind, then so does m − 1, and m before n + 1."""
        literal = self.first.get((one, other))
        if literal is None or R in (one[0], other[0]):
            return
        if one[3] > 0:
            self._imply(literal, self.before((*one[:3], one[3] - 1), other))
        if other[3] + 1 < self.problem.microbatches:
            self._imply(literal, self.before(one, (*other[:3], other[3] + 1)))

    def _imply(self, literal: cp_model.IntVar, consequence: Literal) -> None:
        if not isinstance(consequence, bool):
            self.model.add_implication(literal, consequence)

    def _add_elision(self, again: OpKey, keys: Iterable[OpKey]) -> None:
        """An elided R has its B right after its F: ops that run after F run after B."""
        forward, backward = (F, *again[1:]), (B, *again[1:])
        for key in keys:
            if key in (forward, backward) or key[0] == R:
                continue
            after_forward = self.before(forward, key)
            after_backward = self.before(backward, key)
            self.model.add_bool_or(~self.elided[again], _negated(after_forward), after_backward)
        for key in keys:
            if key[0] == R and key != again:
                self._keep_out(key, forward, backward, again)

    def _keep_out(self, other: OpKey, forward: OpKey, backward: OpKey, again: OpKey) -> None:
        """An R that runs after an elided microbatch's F runs after its B."""
        after_forward, after_backward = self.before(forward, other), self.before(backward, other)
        self.model.add_bool_or(
            ~self.elided[again], self.elided[other], _negated(after_forward), after_backward
        )

    def _limit_stage(self, pipeline: int, stage: int) -> None:
        """Chunks that a stage holds, over all its positions."""
        problem, positions = self.problem, self.problem.positions_on(stage)
        most, most_full = problem.limits_of(stage)
        chunks = len(positions) * problem.microbatches  # a limit of all of them cannot matter
        if most < chunks:
            held = [
                self._interval(self.start[F, pipeline, position, m], pipeline, position, m, True)
                for position in positions
                for m in range(problem.microbatches)
            ]
            self.model.add_cumulative(held, [1] * len(held), most)
        if most_full >= chunks or not problem.recomputes(positions[0]):
            return
        full = []
        for position in positions:
            for m in range(problem.microbatches):
                elided = self.elided[R, pipeline, position, m]
                for kind, present in ((R, ~elided), (F, elided)):
                    full.append(
                        self._interval(
                            self.start[kind, pipeline, position, m], pipeline, position, m, present
                        )
                    )
        self.model.add_cumulative(full, [1] * len(full), most_full)

    def _interval(
        self, begin: cp_model.IntVar, pipeline: int, position: int, m: int, present: Literal
    ) -> cp_model.IntervalVar:
        """From `begin` until the stage no longer holds the microbatch of the position."""
        end = self.end((self.problem.closing, pipeline, position, m))
        size = self.model.new_int_var(0, self.most, "")
        return self.model.new_optional_interval_var(begin, size, end, present, "")

    def _add_edge(self, edge: int) -> None:
        """An op starts after its input has arrived over the edge."""
        problem = self.problem
        for pipeline in range(problem.pipelines):
            for m in range(problem.microbatches):
                down, up = (F, pipeline, edge + 1, m), (B, pipeline, edge, m)
                self.model.add(self.start[down] >= self.end((F, pipeline, edge, m)) + problem.lag(0, edge))
                self.model.add(self.start[up] >= self.end((B, pipeline, edge + 1, m)) + problem.lag(1, edge))

    def _add_link(self, direction: int, hop: int) -> None:
        """Transfers on one link, or on each pipeline's own, one at a time."""
        problem = self.problem
        transfers = [
            int(transfer) for transfer in problem.traversal.transfer_of[direction, hop] if transfer >= 0
        ]
        if problem.transfer_time[hop] == 0 or not transfers:
            return
        every = range(problem.pipelines)
        for users in [every] if problem.shared[hop] else [range(k, k + 1) for k in every]:
            classes = [(*divmod(transfer, problem.positions - 1), k) for transfer in transfers for k in users]
            if len(classes) > 1 or problem.transfer_time[hop] > self._pace(classes[0]):
                self._add_queue(hop, classes)

    def _pace(self, sender: tuple[int, int, int]) -> int:
        """The time of the op that produces the message: a link at least as fast never delays it."""
        kind, _, position, _ = self.problem.producer((*sender, 0))
        return self.problem.length(kind, position)

    def _add_queue(self, hop: int, classes: list[tuple[int, int, int]]) -> None:
        """Start times on one link of every (payload, edge, pipeline) that it carries."""
        problem, model = self.problem, self.model
        held, latency = int(problem.transfer_time[hop]), int(problem.latency[hop])
        intervals = []
        for sender in classes:
            for m in range(problem.microbatches):
                key = (*sender, m)
                self.sent[key] = sent = model.new_int_var(0, self.most, "")
                model.add(sent >= self.end(self.problem.producer(key)))
                model.add(self.start[self.problem.consumer(key)] >= sent + held + latency)
                if m > 0:
                    model.add(sent >= self.sent[*sender, m - 1] + held)
                intervals.append(model.new_fixed_size_interval_var(sent, held, ""))
        if len(classes) == 1:
            return
        model.add_no_overlap(intervals)
        for one, other in combinations(classes, 2):
            for m in range(problem.microbatches):
                for n in range(problem.microbatches):
                    self._add_turn((*one, m), (*other, n), hop)

    def _add_turn(self, one: TransferKey, other: TransferKey, hop: int) -> None:
        """Which of two transfers goes first: open, unless a Schedule cannot list the link's order."""
        held, model = int(self.problem.transfer_time[hop]), self.model
        literal: Literal
        if one[2] == other[2] and self.problem.ordered_by_ops(hop):
            literal = self.before(self.problem.producer(one), self.problem.producer(other))
        else:
            literal = self.turn[one, other] = model.new_bool_var("")
        model.add(self.sent[other] >= self.sent[one] + held).only_enforce_if(literal)
        model.add(self.sent[one] >= self.sent[other] + held).only_enforce_if(_negated(literal))

    def _break_symmetry(self) -> None:
        """Pipelines are alike: they are numbered as their first activations cross the first shared hop."""
        problem = self.problem
        shared = [
            edge
            for edge in range(problem.positions - 1)
            if problem.crosses(edge) and problem.shared[problem.traversal.hop_of[edge]]
        ]
        for pipeline in range(1, problem.pipelines):
            edge = shared[0]
            held = int(problem.transfer_time[problem.traversal.hop_of[edge]])
            self.model.add(self.sent[0, edge, pipeline, 0] >= self.sent[0, edge, pipeline - 1, 0] + held)


def _negated(literal: Literal) -> Literal:
    return not literal if isinstance(literal, bool) else ~literal

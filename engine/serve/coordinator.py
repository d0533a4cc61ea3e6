"""A coordinator's requests from their receipt to their last token.

No sockets and no waiting here: what comes is handed in, what goes out goes to `Guest`, `Peer` and `Decoder`,
and `turn` does what is due. A request's prompt lives in its `Live` and nowhere else.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.inputs import Document
from engine.prefill.handover import transfer_params
from engine.prefill.kernels.place import BEGIN, END, TOKENS
from engine.prefill.messages import Accepted, Ask, Done, Failed, Finish, Refused, Token, context_exceeded
from engine.prefill.placement import Moved, Placement, Refusal, Request
from engine.serve.answer_text import AnswerText
from engine.serve.coordinator_counts import Counts
from engine.serve.coordinator_plan import CoordinatorPlan
from engine.serve.coordinator_request import Decoder, Guest, Live, Model, Peer, encoded, gpus_of
from engine.serve.decoding import MISSING
from engine.serve.prefill_wire import (
    Cancel,
    ChunkLate,
    ChunkRan,
    Drop,
    FromPrefillWorker,
    IterationBegun,
    IterationRan,
    OpsChanged,
    Row,
)

LEAD_MS = 25.0  # before its begin a chunk goes to its rank
LEASE_S = 10.0  # of a cache beyond its planned end
HAND_OVER_LEASE_S = 30.0  # for a tenant's own decoder
NOT_YET_MS = 1000.0
NO_ROOM_MS = 50.0
WAIT_MS = 5.0
TRY_AGAIN_MS = 50.0  # after which a place is looked for again, where there is none
# So long, or an iteration if longer, a rank may say nothing of a chunk that should be done.
OVERDUE_MS = 1_000.0
# So long nothing runs of a request that training was late for, before it is lost; the longer of both.
PATIENCE_MS = 10_000.0
PATIENCE_ITERATIONS = 8


class PrefillCoordinator:
    """Requests of any number of gateways, in the bubbles of `plan`.

    now_ms : the coordinator's clock, which stands at 0 at monotonic second `origin_s`.
    """

    def __init__(
        self,
        plan: CoordinatorPlan,
        model: Model,
        *,
        decoder: Decoder | None,
        now_ms: Callable[[], float],
        origin_s: float,
    ) -> None:
        self.plan, self.model, self._decoder, self._now_ms = plan, model, decoder, now_ms
        self._origin_s = origin_s
        self.counts = Counts()
        self._peers: dict[int, Peer] = {}
        self._live: dict[str, Live] = {}
        self._names: dict[tuple[int, str], str] = {}
        self._number = 0

    @property
    def attached(self) -> int:
        """How many GPUs' ranks are there."""
        return len(self._peers)

    @property
    def waiting(self) -> int:
        """Requests that are accepted and have not begun."""
        if not self.plan.knows:
            return 0
        return len(self.plan.controller.waiting) + len(self.plan.controller.reserved)

    # Gateways.

    def ask(self, guest: Guest, ask: Ask) -> None:
        """A request: it is accepted or refused at once."""
        now_ms = self._now_ms()
        name = id(guest), ask.request
        if name in self._names:
            self._refuse(guest, ask, "invalid_prompt", message="a request of this id is under way")
            return
        ids = self._ids(guest, ask)
        if ids is None:
            return
        if not self.plan.knows or not self._peers:
            message = "training has not run for long enough to know its bubbles"
            what = {"retry_after_ms": NOT_YET_MS, "prompt_tokens": len(ids), "message": message}
            self._refuse(guest, ask, "no_bubble", **what)
            return
        self._number += 1
        key = f"{self._number}-{ask.request}"
        objective = ask.ttft_objective_ms
        request = Request(
            id=key,
            tokens=len(ids),
            arrival_ms=max(now_ms, self.plan.controller.now_ms),
            priority=ask.priority,
            deadline_ms=now_ms + objective if objective is not None else np.inf,
        )
        placed = self.plan.offer(request)
        if isinstance(placed, Refusal):
            after = placed.retry_after_ms
            self._refuse(guest, ask, placed.reason, retry_after_ms=after, prompt_tokens=len(ids))
            return
        text = AnswerText(self.model.tokenizer.pieces(), ask.stop)
        live = Live(
            key=key,
            guest=guest,
            ask=ask,
            ids=ids,
            text=text,
            received_ms=now_ms,
            placement=placed,
            degree=self.plan.degree,
        )
        self._live[key], self._names[name] = live, key
        self.counts.accepted += 1
        guest.post(
            Accepted(
                request=ask.request,
                prompt_tokens=len(ids),
                queue_ms=max(0.0, placed.queue_ms),
                ttft_ms=max(0.0, placed.ttft_ms),
            )
        )
        self._overtaken()

    def withdraw(self, guest: Guest, request: str) -> None:
        """The client is gone."""
        key = self._names.get((id(guest), request))
        if key is not None:
            self._fail(self._live[key], "cancelled")

    def gone(self, guest: Guest) -> None:
        """A gateway is gone, and with it all who asked through it."""
        for owner, request in list(self._names):
            if owner == id(guest):
                self.withdraw(guest, request)

    def stop(self) -> None:
        """The run ends."""
        for live in list(self._live.values()):
            self._fail(live, "stopped")

    # Ranks.

    def attach(self, gpu: int, peer: Peer) -> None:
        """A rank is there."""
        self._peers[gpu] = peer

    def detach(self, gpu: int, peer: Peer) -> None:
        """A rank is gone, with all that it held."""
        if self._peers.get(gpu) is not peer:
            return
        del self._peers[gpu]
        for live in [one for one in self._live.values() if gpu in one.gpus and one.made == 0]:
            self._fail(live, "training", "the rank that computed it is gone")

    def heard(self, gpu: int, message: FromPrefillWorker) -> None:
        """What a rank says."""
        now_ms, to_ms = self._now_ms(), self._to_ms
        if isinstance(message, OpsChanged):
            if self.plan.reordered(gpu, message.since, message.ops):
                for unfinished in [one for one in self._live.values() if one.made == 0]:
                    self._again(unfinished, now_ms)
        elif isinstance(message, IterationBegun):
            moved = self.plan.begun(message.iteration, to_ms(message.start_s), now_ms)
            self._moved(moved, now_ms)
        elif isinstance(message, IterationRan):
            self.counts.waited_ms += message.waited_s * 1e3
            starts_ms, ends_ms = [to_ms(s) for s in message.starts_s], [to_ms(s) for s in message.ends_s]
            self._moved(self.plan.ran(gpu, message.iteration, starts_ms, ends_ms, now_ms), now_ms)
        elif isinstance(message, ChunkRan):
            self.counts.prefill_ms += (message.end_s - message.start_s) * 1e3
            self.plan.chunk_ran(to_ms(message.start_s))
            self._ran(gpu, message, now_ms)
        else:
            live = self._live.get(message.request)
            if live is not None and live.made == 0 and gpu in live.gpus:
                self._given_back(live, message, now_ms)

    def turn(self) -> float | None:
        """Do what is due; returns in how many seconds to come again, None: when something comes."""
        now_ms = self._now_ms()
        self.plan.advance(now_ms)
        self._moved(self.plan.look(now_ms), now_ms)
        for live in [one for one in self._live.values() if one.try_ms is not None and one.try_ms <= now_ms]:
            self._again(live, now_ms)
        for live in [one for one in self._live.values() if self._overdue_ms(one) < now_ms]:
            self._again(live, now_ms)
        next_ms = np.inf
        for live in self._live.values():
            if live.try_ms is not None:
                next_ms = min(next_ms, live.try_ms)
                continue
            chunks = live.chunks
            for stage in range(live.degree):
                begins = chunks[:, stage, BEGIN]
                while live.sent[stage] < len(begins) and begins[live.sent[stage]] - now_ms <= LEAD_MS:
                    self._send(live, live.sent[stage], stage, now_ms)
                    live.sent[stage] += 1
                if live.sent[stage] < len(begins):
                    next_ms = min(next_ms, float(begins[live.sent[stage]]) - LEAD_MS)
            next_ms = min(next_ms, self._overdue_ms(live))
        if self._live:
            next_ms = min(next_ms, self.plan.look_ms)
        return None if np.isinf(next_ms) else max(0.0, (next_ms - now_ms) / 1e3)

    # The decoder.

    def decoded(self, message: dict[str, Any]) -> None:
        """What the decoder says."""
        live = self._live.get(message.get("request", ""))
        if live is None:
            return
        if "failed" in message:
            self._fail(live, "decode", f"the decoder could not go on: {message['failed']}")
        elif "end" in message:
            if rest := live.text.rest():  # what could have become a stop text, and did not
                live.guest.post(Token(request=live.ask.request, token=live.last, text=rest))
            self._finish(live, message["end"])
        else:
            self._token(live, message["token"])

    def decoder_lost(self) -> None:
        """Nobody goes on with what it had."""
        self._decoder = None
        for live in [one for one in self._live.values() if one.made]:
            self._fail(live, "decode", "the decoder ended")

    def _ids(self, guest: Guest, ask: Ask) -> list[int] | None:
        """The prompt as ids; None where it was refused."""
        try:
            ids = encoded(ask, self.model)
        except InputError as error:
            self._refuse(guest, ask, "invalid_prompt", message=f"{error.field}: {error.allowed}")
            return None
        count = len(ids)
        if ask.max_tokens > 1 and self._decoder is None:
            self._refuse(guest, ask, "invalid_prompt", prompt_tokens=count, message=f"max_tokens: {MISSING}")
        elif count + ask.max_tokens > self.model.context:
            message = context_exceeded(self.model.context, count, ask.max_tokens)
            self._refuse(guest, ask, "context_length_exceeded", prompt_tokens=count, message=message)
        elif count > ask.longest_prompt:
            message = f"{ask.longest_prompt:,} are allowed"
            self._refuse(guest, ask, "prompt_too_long", prompt_tokens=count, message=message)
        else:
            return ids
        return None

    def _refuse(self, guest: Guest, ask: Ask, reason: Any, **what: Any) -> None:
        self.counts.refused[reason] += 1
        guest.post(Refused(request=ask.request, reason=reason, **what))

    def _overtaken(self) -> None:
        """Take over the plans of those that a newcomer went before."""
        for placement in self.plan.controller.waiting:
            live = self._live.get(str(placement.request.id))
            if live is not None and live.placement is not placement:
                self._replan(live, placement)

    def _moved(self, moved: Moved, now_ms: float) -> None:
        for placement in moved.moved:
            live = self._live.get(str(placement.request.id))
            if live is not None:
                self._replan(live, placement)
        for placement in moved.lost:
            live = self._live.get(str(placement.request.id))
            if live is not None and live.made == 0:
                self._again(live, now_ms)

    def _replan(self, live: Live, placement: Placement) -> None:
        """Another plan holds; what is the same in it stays with its ranks."""
        kept = live.kept(placement)
        chunks = placement.rows.reshape(-1, live.degree, 4)
        for gpu, sent, same in zip(live.gpus, live.sent, kept, strict=True):
            if sent > same:
                self._tell(gpu, Cancel(request=live.key, done=int(chunks[:same, 0, TOKENS].sum())))
        if live.gpus != gpus_of(placement, live.degree) and any(live.sent):
            self._drop(live)
        live.take_over(placement, kept)

    def _given_back(self, live: Live, late: ChunkLate, now_ms: float) -> None:
        """A rank of its pipeline did not run a chunk."""
        gone = late.why == "gone"
        if live.token is not None:  # the last stage is done, but the cache of this one will not come
            live.done, live.token = 0 if gone else late.done, None
            live.passed.clear()
        elif late.done < live.done or (gone and late.done > live.done):
            return  # of an earlier plan; or one before it was given back, which says all
        elif gone:
            live.done = 0
            live.passed.clear()
        self._late(live, now_ms, NO_ROOM_MS if late.why == "kv_space" else 0.0)

    def _late(self, live: Live, now_ms: float, wait_ms: float) -> None:
        """Its rank gave a chunk back. Each time it waits longer for training to go as is thought."""
        self._moved(self.plan.look(now_ms, at_once=True), now_ms)
        if live.key in self._live:
            self._again(live, now_ms, wait_ms=max(wait_ms, min(WAIT_MS * live.tries, NO_ROOM_MS)))

    def _again(self, live: Live, now_ms: float, *, wait_ms: float = 0.0) -> None:
        """Place what it still lacks anew; where there is no place, look again until patience ends."""
        if live.late_ms is None:
            live.late_ms = now_ms
        if now_ms - live.late_ms > max(PATIENCE_MS, PATIENCE_ITERATIONS * self.plan.period_ms):
            self._fail(live, "training", "training came later than foretold, and there is no other place")
            return
        live.tries += 1
        before = live.gpus
        for gpu in before:
            self._tell(gpu, Cancel(request=live.key, done=live.done))
        # What was handed on and is not there will not come: a second time it is made again.
        passed = live.under_way() if live.tries == 1 else []
        if not passed:
            live.passed.clear()
        placement = self.plan.resume(
            live.placement, live.done, now_ms, not_before_ms=now_ms + wait_ms, passed=passed
        )
        if placement is None:
            live.try_ms = now_ms + TRY_AGAIN_MS
            return
        if live.gpus != before:
            self._drop(live)
        begun = [sum(stages > stage for _, stages in passed) for stage in range(live.degree)]
        live.take_over(placement, [(live.done > 0) + count for count in begun])

    def _overdue_ms(self, live: Live) -> float:
        """When its ranks, which have all that is left of it, should have told of it for an iteration: nothing
        that was accepted may wait for ever for one that hangs. Infinite where something else comes first."""
        chunks = live.chunks
        if live.made or live.try_ms is not None or min(live.sent) < len(chunks):
            return np.inf
        return float(chunks[-1, :, END].max()) + max(self.plan.period_ms, OVERDUE_MS)

    def _send(self, live: Live, index: int, stage: int, now_ms: float) -> None:
        gpu, row = live.gpus[stage], live.chunks[index, stage]
        done, tokens = int(live.chunks[:index, 0, TOKENS].sum()), int(row[TOKENS])
        op, until_ms = self.plan.before_op(gpu, float(row[BEGIN]), now_ms)
        final, last = done + tokens == len(live.ids), stage == live.degree - 1
        left_s = max(0.0, float(live.placement.rows[-1, END]) - now_ms) / 1e3
        message = Row(
            request=live.key,
            done=done,
            tokens=tokens,
            total=len(live.ids),
            ids=tuple(live.ids[done : done + tokens]) if stage == 0 else (),
            iteration=op[0],
            op=op[1],
            begin_s=self._origin_s + float(row[BEGIN]) / 1e3,
            until_s=self._origin_s + until_ms / 1e3,
            sampling=live.ask.sampling if final and last else None,
            keep=final and live.keeps,
            lease_s=left_s + (HAND_OVER_LEASE_S if live.ask.hand_over else LEASE_S),
        )
        self._tell(gpu, message)

    def _ran(self, gpu: int, ran: ChunkRan, now_ms: float) -> None:
        live = self._live.get(ran.request)
        if live is None or live.made or gpu not in live.gpus:
            if live is None:
                self._tell(gpu, Drop(request=ran.request))
            return
        stage = live.gpus.index(gpu)
        if ran.cache is not None:
            live.caches[stage] = ran.cache
        if stage < live.degree - 1:
            live.ran(stage, ran.done, ran.tokens)
        elif ran.done == live.done:
            live.done += ran.tokens
            live.late_ms, live.tries = None, 0
            live.token = ran.token
            earlier = live.done not in live.ends_sent()  # a chunk of an earlier plan had begun
            if live.token is None and (earlier or live.try_ms is not None):
                self._again(live, now_ms)
        if live.token is not None and (not live.keeps or len(live.caches) == live.degree):
            self._first(live, live.token, now_ms)

    def _first(self, live: Live, token: int, now_ms: float) -> None:
        live.ttft_ms = now_ms - live.received_ms
        self.plan.advance(now_ms)
        self.plan.cancel(live.placement)
        ask, params = live.ask, None
        if live.keeps:
            params = transfer_params(
                engine_id=self.model.engine_id,
                request=live.key,
                tokens=len(live.ids),
                stages=[live.caches[stage] for stage in range(live.degree)],
            )
        for gpu in live.gpus[:-1]:  # the last one knows
            end = Cancel(request=live.key, done=0) if live.keeps else Drop(request=live.key)
            self._tell(gpu, end)
        if ask.hand_over:
            self._token(live, token, first=True)
            self._finish(live, "length", params)
        elif token in self.model.ends and not ask.sampling.ignore_eos:
            self._drop(live)
            self._finish(live, "stop")
        elif self._token(live, token, first=True):
            if params is None or self._decoder is None:
                if ask.max_tokens > 1:
                    self._fail(live, "decode", "there is no decoder")
                else:
                    self._finish(live, "length")
                return
            self._decoder.start(live.key, params, token, most=ask.max_tokens - 1, sampling=ask.sampling)

    def _token(self, live: Live, token: int, *, first: bool = False) -> bool:
        """Send a token; False where the answer ended with it."""
        live.made, live.last = live.made + 1, token
        last = live.made == live.ask.max_tokens
        text = live.text.add(token, last=last)
        live.guest.post(
            Token(request=live.ask.request, token=token, text=text, ttft_ms=live.ttft_ms if first else None)
        )
        if live.text.stopped and not live.ask.hand_over:
            if self._decoder is not None and not first:
                self._decoder.stop(live.key)
            self._drop(live)
            self._finish(live, "stop")
            return False
        return True

    def _finish(self, live: Live, finish: Finish, params: Any = None) -> None:
        self._forget(live)
        self.counts.delivered += 1
        objective = live.ask.ttft_objective_ms
        self.counts.missed += objective is not None and live.ttft_ms > objective
        live.guest.post(
            Done(
                request=live.ask.request,
                finish=finish,
                prompt_tokens=len(live.ids),
                completion_tokens=live.made,
                ttft_ms=live.ttft_ms,
                kv_transfer_params=params,
            )
        )

    def _fail(self, live: Live, reason: Any, message: str = "") -> None:
        self._forget(live)
        self.counts.failed[reason] += 1
        self.plan.cancel(live.placement)
        if live.made and self._decoder is not None:
            self._decoder.stop(live.key)
        self._drop(live)
        live.guest.post(Failed(request=live.ask.request, reason=reason, message=message))

    def _forget(self, live: Live) -> None:
        self._live.pop(live.key, None)
        self._names.pop((id(live.guest), live.ask.request), None)

    def _drop(self, live: Live) -> None:
        for gpu in live.gpus:
            self._tell(gpu, Drop(request=live.key))

    def _to_ms(self, seconds: float) -> float:
        return (seconds - self._origin_s) * 1e3

    def _tell(self, gpu: int, message: Document) -> None:
        if gpu in self._peers:
            self._peers[gpu].post(message)

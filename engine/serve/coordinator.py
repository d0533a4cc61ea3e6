"""A coordinator's requests from their receipt to their last token.

No sockets and no waiting here: callers hand in what comes, what goes out goes to a `Peer` and the
`Decoder`, and `turn` does what is due. A request's prompt lives in its `PrefillProgress` and nowhere else.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.inputs import Document
from engine.prefill.handover import HAND_OVER_S, DecodeReceiver, HandedOver, transfer_params
from engine.prefill.kernels.place import BEGIN, END, TOKENS
from engine.prefill.messages import (
    Accepted,
    Done,
    Failed,
    Finish,
    PrefillRequest,
    Refused,
    Token,
    context_exceeded,
)
from engine.prefill.placement import Moved, Placement, PlacementQuery, Refusal
from engine.serve.answer_text import AnswerText
from engine.serve.coordinator_counts import Counts
from engine.serve.coordinator_plan import CoordinatorPlan
from engine.serve.decoding import MISSING
from engine.serve.delivered import DeliveryRecord
from engine.serve.prefill_progress import Decoder, Model, Peer, PrefillProgress, encoded, gpus_of
from engine.serve.prefill_wire import (
    CachePushed,
    Cancel,
    ChunkLate,
    ChunkRan,
    Drop,
    FromPrefillWorker,
    IterationBegun,
    IterationRan,
    OpsChanged,
    PushCache,
    RunChunk,
)

LEAD_MS = 25.0  # before its begin a chunk goes to its rank
LEASE_S = HAND_OVER_S  # of a cache beyond its planned end: a busy machine's decoder fetches late
NOT_YET_MS = 1000.0
NO_ROOM_MS = 50.0
WAIT_MS = 5.0
TRY_AGAIN_MS = 50.0  # after which a place is looked for again, where there is none
# So long, or an iteration if longer, a rank may say nothing of a chunk that should be done.
OVERDUE_MS = 1_000.0
# So long nothing runs of a request that training was late for, before it is lost; the longer of both.
PATIENCE_MS = 10_000.0
PATIENCE_ITERATIONS = 8
NOT_TAKEN = "the receiver did not take the KV cache"


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
        self._delivered = DeliveryRecord()
        self._peers: dict[int, Peer] = {}
        self._requests: dict[str, PrefillProgress] = {}
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

    def submit(self, gateway: Peer, request: PrefillRequest) -> None:
        """Accept or refuse a request, at once; of a quote, say so and keep nothing."""
        now_ms = self._now_ms()
        name = id(gateway), request.request
        if name in self._names and not request.quote:
            self._refuse(gateway, request, "invalid_prompt", message="a request of this id is under way")
            return
        ids = self._ids(gateway, request)
        if ids is None:
            return
        if not self.plan.knows or not self._peers:
            message = "training has not run for long enough to know its bubbles"
            what = {"retry_after_ms": NOT_YET_MS, "prompt_tokens": len(ids), "message": message}
            self._refuse(gateway, request, "no_bubble", **what)
            return
        self._number += 1
        key = f"{self._number}-{request.request}"
        objective = request.ttft_objective_ms
        beyond_ms = self.plan.beyond_lan_ms(request.link, len(ids))
        query = PlacementQuery(
            id=key,
            tokens=len(ids),
            arrival_ms=max(now_ms, self.plan.controller.now_ms),
            priority=request.priority,
            deadline_ms=now_ms + objective - beyond_ms if objective is not None else np.inf,
        )
        placed = self.plan.offer(query, quote=request.quote)
        if isinstance(placed, Refusal):
            after = placed.retry_after_ms
            self._refuse(gateway, request, placed.reason, retry_after_ms=after, prompt_tokens=len(ids))
            return
        accepted = Accepted(
            request=request.request,
            prompt_tokens=len(ids),
            queue_ms=max(0.0, placed.queue_ms),
            ttft_ms=max(0.0, placed.ttft_ms + beyond_ms),
        )
        if request.quote:
            gateway.post(accepted)
            return
        text = AnswerText(self.model.tokenizer.pieces(), request.stop)
        progress = PrefillProgress(
            key=key,
            gateway=gateway,
            request=request,
            ids=ids,
            text=text,
            received_ms=now_ms,
            placement=placed,
            degree=self.plan.degree,
        )
        self._requests[key], self._names[name] = progress, key
        self.counts.accepted += 1
        self._delivered.accepted(request.request, len(ids))
        gateway.post(accepted)
        self._overtaken()

    def withdraw(self, gateway: Peer, request: str) -> None:
        """The client is gone."""
        key = self._names.get((id(gateway), request))
        if key is not None:
            self._fail(self._requests[key], "cancelled")

    def account(self, gateway: Peer, requests: Sequence[str]) -> None:
        """Tell a gateway what was delivered of requests, perhaps of another one's that is gone."""
        for request in requests:
            gateway.post(self._delivered.account(request))

    def gateway_lost(self, gateway: Peer) -> None:
        """A gateway is gone, and with it all clients that sent requests through it."""
        for owner, request in list(self._names):
            if owner == id(gateway):
                self.withdraw(gateway, request)

    def stop(self) -> None:
        """The run ends."""
        for progress in list(self._requests.values()):
            self._fail(progress, "stopped")

    # Ranks.

    def attach(self, gpu: int, peer: Peer) -> None:
        """A rank is there."""
        self._peers[gpu] = peer

    def detach(self, gpu: int, peer: Peer) -> None:
        """A rank is gone, with all that it held."""
        if self._peers.get(gpu) is not peer:
            return
        del self._peers[gpu]
        for progress in [one for one in self._requests.values() if gpu in one.gpus and one.made == 0]:
            self._fail(progress, "training", "the rank that computed it is gone")

    def handle(self, gpu: int, message: FromPrefillWorker) -> None:
        """Handle a message of a rank's prefill worker."""
        now_ms, to_ms = self._now_ms(), self._to_ms
        if isinstance(message, OpsChanged):
            if self.plan.reordered(gpu, message.since, message.ops):
                for unfinished in [one for one in self._requests.values() if one.computes]:
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
            progress = self._requests.get(message.request)
            if progress is None or gpu not in progress.gpus:
                return
            if isinstance(message, CachePushed):
                self._pushed(progress, progress.gpus.index(gpu), message.error, now_ms)
            elif progress.computes:
                self._given_back(progress, message, now_ms)

    def turn(self) -> float | None:
        """Do what is due; returns in how many seconds to come again, None: when something comes."""
        now_ms = self._now_ms()
        self.plan.advance(now_ms)
        self._moved(self.plan.look(now_ms), now_ms)
        for progress in [
            one for one in self._requests.values() if one.try_ms is not None and one.try_ms <= now_ms
        ]:
            self._again(progress, now_ms)
        for progress in [one for one in self._requests.values() if self._overdue_ms(one) < now_ms]:
            if progress.pushing:
                self._fail(progress, "decode", f"{NOT_TAKEN}: it took too long")
            else:
                self._again(progress, now_ms)
        next_ms = np.inf
        for progress in self._requests.values():
            if progress.try_ms is not None:
                next_ms = min(next_ms, progress.try_ms)
                continue
            chunks = progress.chunks
            for stage in range(progress.degree):
                begins = chunks[:, stage, BEGIN]
                while progress.sent[stage] < len(begins) and begins[progress.sent[stage]] - now_ms <= LEAD_MS:
                    self._send(progress, progress.sent[stage], stage, now_ms)
                    progress.sent[stage] += 1
                if progress.sent[stage] < len(begins):
                    next_ms = min(next_ms, float(begins[progress.sent[stage]]) - LEAD_MS)
            next_ms = min(next_ms, self._overdue_ms(progress))
        if self._requests:
            next_ms = min(next_ms, self.plan.look_ms)
        return None if np.isinf(next_ms) else max(0.0, (next_ms - now_ms) / 1e3)

    # The decoder.

    def handle_decoder(self, message: dict[str, Any]) -> None:
        """Handle a message of the decoder."""
        progress = self._requests.get(message.get("request", ""))
        if progress is None:
            return
        if "failed" in message:
            self._fail(progress, "decode", f"the decoder could not go on: {message['failed']}")
        elif "end" in message:
            if rest := progress.text.rest():  # what could have become a stop text, and did not
                progress.gateway.post(Token(request=progress.request.request, token=progress.last, text=rest))
            self._finish(progress, message["end"])
        else:
            self._token(progress, message["token"])

    def decoder_lost(self) -> None:
        """Nobody goes on with what it had."""
        self._decoder = None
        for progress in [one for one in self._requests.values() if one.made]:
            self._fail(progress, "decode", "the decoder ended")

    def _ids(self, gateway: Peer, request: PrefillRequest) -> list[int] | None:
        """The prompt as ids; None where it was refused."""
        try:
            ids = encoded(request, self.model)
        except InputError as error:
            self._refuse(gateway, request, "invalid_prompt", message=f"{error.field}: {error.allowed}")
            return None
        count = len(ids)
        if request.max_tokens > 1 and self._decoder is None:
            self._refuse(
                gateway, request, "invalid_prompt", prompt_tokens=count, message=f"max_tokens: {MISSING}"
            )
        elif count + request.max_tokens > self.model.context:
            message = context_exceeded(self.model.context, count, request.max_tokens)
            self._refuse(gateway, request, "context_length_exceeded", prompt_tokens=count, message=message)
        elif count > request.longest_prompt:
            message = f"{request.longest_prompt:,} are allowed"
            self._refuse(gateway, request, "prompt_too_long", prompt_tokens=count, message=message)
        else:
            return ids
        return None

    def _refuse(self, gateway: Peer, request: PrefillRequest, reason: Any, **what: Any) -> None:
        if not request.quote:
            self.counts.refused[reason] += 1
        gateway.post(Refused(request=request.request, reason=reason, **what))

    def _overtaken(self) -> None:
        """Take over the plans of those that a newcomer went before."""
        for placement in self.plan.controller.waiting:
            progress = self._requests.get(str(placement.request.id))
            if progress is not None and progress.placement is not placement:
                self._replan(progress, placement)

    def _moved(self, moved: Moved, now_ms: float) -> None:
        for placement in moved.moved:
            progress = self._requests.get(str(placement.request.id))
            if progress is not None:
                self._replan(progress, placement)
        for placement in moved.lost:
            progress = self._requests.get(str(placement.request.id))
            if progress is not None and progress.computes:
                self._again(progress, now_ms)

    def _replan(self, progress: PrefillProgress, placement: Placement) -> None:
        """Another plan holds; what is the same in it stays with its ranks."""
        stays = progress.kept(placement)
        chunks = placement.rows.reshape(-1, progress.degree, 4)
        for gpu, sent, same in zip(progress.gpus, progress.sent, stays, strict=True):
            if sent > same:
                self._send_to(gpu, Cancel(request=progress.key, done=int(chunks[:same, 0, TOKENS].sum())))
        if progress.gpus != gpus_of(placement, progress.degree) and any(progress.sent):
            self._drop(progress)
        progress.take_over(placement, stays)

    def _given_back(self, progress: PrefillProgress, late: ChunkLate, now_ms: float) -> None:
        """A rank of its pipeline did not run a chunk."""
        gone = late.why == "gone"
        if progress.token is not None:  # the last stage is done, but the cache of this one will not come
            progress.done, progress.token = 0 if gone else late.done, None
            progress.passed.clear()
        elif late.done < progress.done or (gone and late.done > progress.done):
            return  # of an earlier plan; or one before it was given back, which says all
        elif gone:
            progress.done = 0
            progress.passed.clear()
        self._late(progress, now_ms, NO_ROOM_MS if late.why == "kv_space" else 0.0)

    def _late(self, progress: PrefillProgress, now_ms: float, wait_ms: float) -> None:
        """Its rank gave a chunk back. Each time it waits longer for training to go as is thought."""
        self._moved(self.plan.look(now_ms, at_once=True), now_ms)
        if progress.key in self._requests:
            self._again(progress, now_ms, wait_ms=max(wait_ms, min(WAIT_MS * progress.tries, NO_ROOM_MS)))

    def _again(self, progress: PrefillProgress, now_ms: float, *, wait_ms: float = 0.0) -> None:
        """Place again what it still lacks; where there is no bubble, look again until patience ends."""
        if progress.late_ms is None:
            progress.late_ms = now_ms
        if now_ms - progress.late_ms > max(PATIENCE_MS, PATIENCE_ITERATIONS * self.plan.period_ms):
            self._fail(
                progress,
                "training",
                "training ran later than predicted, and no other bubble takes the prompt",
            )
            return
        progress.tries += 1
        before = progress.gpus
        for gpu in before:
            self._send_to(gpu, Cancel(request=progress.key, done=progress.done))
        # What was handed on and is not there will not come: a second time it is made again.
        passed = progress.under_way() if progress.tries == 1 else []
        if not passed:
            progress.passed.clear()
        placement = self.plan.resume(
            progress.placement, progress.done, now_ms, not_before_ms=now_ms + wait_ms, passed=passed
        )
        if placement is None:
            progress.try_ms = now_ms + TRY_AGAIN_MS
            return
        if progress.gpus != before:
            self._drop(progress)
        begun = [sum(stages > stage for _, stages in passed) for stage in range(progress.degree)]
        progress.take_over(placement, [(progress.done > 0) + count for count in begun])

    def _overdue_ms(self, progress: PrefillProgress) -> float:
        """When its ranks, which have all that is left of it, should have told of it for an iteration: nothing
        that was accepted may wait for ever for one that hangs. Infinite where something else comes first."""
        if progress.pushing:
            return progress.push_ms
        chunks = progress.chunks
        if progress.made or progress.try_ms is not None or min(progress.sent) < len(chunks):
            return np.inf
        return float(chunks[-1, :, END].max()) + max(self.plan.period_ms, OVERDUE_MS)

    def _send(self, progress: PrefillProgress, index: int, stage: int, now_ms: float) -> None:
        gpu, row = progress.gpus[stage], progress.chunks[index, stage]
        done, tokens = int(progress.chunks[:index, 0, TOKENS].sum()), int(row[TOKENS])
        op, until_ms = self.plan.before_op(gpu, float(row[BEGIN]), now_ms)
        final, last = done + tokens == len(progress.ids), stage == progress.degree - 1
        left_s = max(0.0, float(progress.placement.rows[-1, END]) - now_ms) / 1e3
        message = RunChunk(
            request=progress.key,
            done=done,
            tokens=tokens,
            total=len(progress.ids),
            ids=tuple(progress.ids[done : done + tokens]) if stage == 0 else (),
            iteration=op[0],
            op=op[1],
            begin_s=self._origin_s + float(row[BEGIN]) / 1e3,
            until_s=self._origin_s + until_ms / 1e3,
            sampling=progress.request.sampling if final and last else None,
            keep=final and progress.keeps,
            lease_s=left_s + LEASE_S,
        )
        self._send_to(gpu, message)

    def _ran(self, gpu: int, ran: ChunkRan, now_ms: float) -> None:
        progress = self._requests.get(ran.request)
        if progress is None or not progress.computes or gpu not in progress.gpus:
            if progress is None:
                self._send_to(gpu, Drop(request=ran.request))
            return
        stage = progress.gpus.index(gpu)
        if ran.cache is not None:
            progress.caches[stage] = ran.cache
        if stage < progress.degree - 1:
            progress.ran(stage, ran.done, ran.tokens)
        elif ran.done == progress.done:
            progress.done += ran.tokens
            progress.late_ms, progress.tries = None, 0
            progress.token = ran.token
            earlier = progress.done not in progress.ends_sent()  # a chunk of an earlier plan had begun
            if progress.token is None and (earlier or progress.try_ms is not None):
                self._again(progress, now_ms)
        if progress.token is not None and (not progress.keeps or len(progress.caches) == progress.degree):
            self._first(progress, progress.token, now_ms)

    def _first(self, progress: PrefillProgress, token: int, now_ms: float) -> None:
        progress.ttft_ms = now_ms - progress.received_ms
        self.plan.advance(now_ms)
        self.plan.cancel(progress.placement)
        request, params = progress.request, None
        if progress.keeps:
            params = transfer_params(
                engine_id=self.model.engine_id,
                request=progress.key,
                tokens=len(progress.ids),
                stages=[progress.caches[stage] for stage in range(progress.degree)],
            )
        for gpu in progress.gpus[:-1]:  # the last one knows
            end = Cancel(request=progress.key, done=0) if progress.keeps else Drop(request=progress.key)
            self._send_to(gpu, end)
        if request.decode is not None:
            self._push(progress, request.decode, token, now_ms)
        elif request.hand_over:
            self._token(progress, token, first=True)
            self._finish(progress, "length", params)
        elif token in self.model.ends and not request.sampling.ignore_eos:
            self._drop(progress)
            self._finish(progress, "stop")
        elif self._token(progress, token, first=True):
            if params is None or self._decoder is None:
                if request.max_tokens > 1:
                    self._fail(progress, "decode", "there is no decoder")
                else:
                    self._finish(progress, "length")
                return
            self._decoder.start(
                progress.key, params, token, most=request.max_tokens - 1, sampling=request.sampling
            )

    def _push(self, progress: PrefillProgress, to: DecodeReceiver, token: int, now_ms: float) -> None:
        """Have all stages send their part of the cache to the receiver; the answer waits for them."""
        progress.pushing, progress.push_ms = set(range(progress.degree)), now_ms + LEASE_S * 1e3
        for stage, gpu in enumerate(progress.gpus):
            order = PushCache(
                request=progress.key,
                stage=stage,
                stages=progress.degree,
                blocks=progress.caches[stage].block_ids,
                token=token,
                to=to,
            )
            self._send_to(gpu, order)

    def _pushed(self, progress: PrefillProgress, stage: int, error: str, now_ms: float) -> None:
        """A stage's part is there, or will not come."""
        if stage not in progress.pushing or progress.token is None or progress.request.decode is None:
            return
        if error:
            self._fail(progress, "decode", f"{NOT_TAKEN}: {error}")
            return
        progress.pushing.discard(stage)
        if progress.pushing:
            return
        progress.ttft_ms = now_ms - progress.received_ms
        self._token(progress, progress.token, first=True)
        handed_over = HandedOver(
            remote_request_id=progress.request.decode.request,
            remote_tokens=len(progress.ids),
            stages=progress.degree,
            next_token=progress.token,
        )
        self._finish(progress, "length", handed_over=handed_over)

    def _token(self, progress: PrefillProgress, token: int, *, first: bool = False) -> bool:
        """Send a token; False where the answer ended with it."""
        progress.made, progress.last = progress.made + 1, token
        last = progress.made == progress.request.max_tokens
        text = progress.text.add(token, last=last)
        self._delivered.token(progress.request.request, progress.ttft_ms)
        progress.gateway.post(
            Token(
                request=progress.request.request,
                token=token,
                text=text,
                ttft_ms=progress.ttft_ms if first else None,
            )
        )
        if progress.text.stopped and not progress.request.hand_over:
            if self._decoder is not None and not first:
                self._decoder.stop(progress.key)
            self._drop(progress)
            self._finish(progress, "stop")
            return False
        return True

    def _finish(
        self,
        progress: PrefillProgress,
        finish: Finish,
        params: Any = None,
        handed_over: HandedOver | None = None,
    ) -> None:
        self._forget(progress)
        self._delivered.ended(progress.request.request, "done", progress.ttft_ms)
        self.counts.delivered += 1
        objective = progress.request.ttft_objective_ms
        self.counts.missed += objective is not None and progress.ttft_ms > objective
        progress.gateway.post(
            Done(
                request=progress.request.request,
                finish=finish,
                prompt_tokens=len(progress.ids),
                completion_tokens=progress.made,
                ttft_ms=progress.ttft_ms,
                kv_transfer_params=params,
                handed_over=handed_over,
            )
        )

    def _fail(self, progress: PrefillProgress, reason: Any, message: str = "") -> None:
        self._forget(progress)
        self._delivered.ended(progress.request.request, reason)
        self.counts.failed[reason] += 1
        self.plan.cancel(progress.placement)
        if progress.made and self._decoder is not None:
            self._decoder.stop(progress.key)
        self._drop(progress)
        progress.gateway.post(Failed(request=progress.request.request, reason=reason, message=message))

    def _forget(self, progress: PrefillProgress) -> None:
        self._requests.pop(progress.key, None)
        self._names.pop((id(progress.gateway), progress.request.request), None)

    def _drop(self, progress: PrefillProgress) -> None:
        for gpu in progress.gpus:
            self._send_to(gpu, Drop(request=progress.key))

    def _to_ms(self, seconds: float) -> float:
        return (seconds - self._origin_s) * 1e3

    def _send_to(self, gpu: int, message: Document) -> None:
        if gpu in self._peers:
            self._peers[gpu].post(message)

"""What a prefill coordinator delivered of each request: the record by which the site charges.

A web process of the site can die in the middle of an answer. What was
delivered till then is known here alone.
"""

from collections import OrderedDict
from dataclasses import dataclass

from engine.prefill.messages import Accounted, Fate

MOST_KEPT = 100_000  # requests: at 10 a second those of the last three hours


@dataclass(slots=True, kw_only=True)
class _Delivery:
    prompt_tokens: int
    tokens: int = 0
    ttft_ms: float | None = None
    fate: Fate = "open"


class DeliveryRecord:
    """Of the last MOST_KEPT requests that were accepted, by their id."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[str, _Delivery] = OrderedDict()

    def accepted(self, request: str, prompt_tokens: int) -> None:
        """A request has its place."""
        self._kept[request] = _Delivery(prompt_tokens=prompt_tokens)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def token(self, request: str, ttft_ms: float) -> None:
        """One of its tokens was sent."""
        if delivery := self._kept.get(request):
            delivery.tokens += 1
            delivery.ttft_ms = ttft_ms

    def ended(self, request: str, fate: Fate, ttft_ms: float | None = None) -> None:
        """Nothing more of it will be sent."""
        if delivery := self._kept.get(request):
            delivery.fate = fate
            delivery.ttft_ms = delivery.ttft_ms if ttft_ms is None else ttft_ms

    def account(self, request: str) -> Accounted:
        """What is known of a request; its fate is `unknown` where that is nothing."""
        delivery = self._kept.get(request)
        if delivery is None:
            return Accounted(request=request, fate="unknown", prompt_tokens=0, tokens=0)
        return Accounted(
            request=request,
            fate=delivery.fate,
            prompt_tokens=delivery.prompt_tokens,
            tokens=delivery.tokens,
            ttft_ms=delivery.ttft_ms,
        )

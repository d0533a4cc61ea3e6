"""What there is to sell of each model that is served now, what is sold of it, and what would be too much."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.cache import cache

from webapp.inventory.models import DataCenter
from webapp.prefill.models import Tenancy
from webapp.prefill.served import coordinators_in
from webapp.prefill.supply import TYPICAL_PROMPT, Supply, sold, supply

KEPT_S = 60  # unless coordinators open or close


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that prefill coordinators of some teams take prompts for, in `where`.

    Rates are in tokens per minute of prompts of `tokens` tokens: the mean prompt of those who buy the model.

    rates : supply by (run, data centre).  unforeseen : runs whose supply is not known.
    """

    model: str
    tokens: int
    where: list[str]
    rates: dict[tuple[int, int], float]
    unforeseen: int
    sold: float

    @property
    def supply(self) -> float:
        return sum(self.rates.values())

    @property
    def free(self) -> float:
        """What is not sold; below 0: sold beyond the supply."""
        return self.supply - self.sold


def served_now(teams: Any) -> list[ServedModel]:
    """The models that the open prefill coordinators of `teams` serve, by name."""
    opened = sorted(coordinators_in(teams).values_list("model", "dc__name", "dc", "run"))
    if not opened:
        return []
    datacenters = list(DataCenter.objects.filter(team__in=teams).order_by("pk"))
    offers = []
    for model in sorted({row[0] for row in opened}):
        here = [row for row in opened if row[0] == model]
        buyers = sold(model, datacenters)
        tokens, rates, unforeseen = _kept(model, datacenters, _mean_prompt(buyers), here)
        offers.append(
            ServedModel(
                model=model,
                tokens=tokens,
                where=sorted({name for _, name, _, _ in here}),
                rates=rates,
                unforeseen=unforeseen,
                sold=sum(rate for _, rate in buyers),
            )
        )
    return offers


def _mean_prompt(buyers: Sequence[tuple[Tenancy, float]]) -> int:
    """Of their prompts together, in tokens."""
    rate = sum(rate for _, rate in buyers)
    prompts = sum(rate / buyer.typical_prompt for buyer, rate in buyers)
    return max(1, round(rate / prompts)) if prompts else TYPICAL_PROMPT


def _kept(
    model: str, datacenters: Sequence[DataCenter], tokens: int, opened: Sequence[Any]
) -> tuple[int, dict[tuple[int, int], float], int]:
    """(tokens, rates, unforeseen) of a model, kept for pages that refresh themselves every few seconds."""

    def figures() -> tuple[int, dict[tuple[int, int], float], int]:
        forecast = _that_fits(supply(model, datacenters, tokens, planned=False), model, datacenters)
        rates = {(row.cell.run.pk, row.cell.dc.pk): 0.0 for row in forecast.held}
        for row in forecast.held:  # a data centre may have GPUs of several types
            rates[row.cell.run.pk, row.cell.dc.pk] += row.tokens_per_min
        return forecast.tokens, rates, len(forecast.unforeseen)

    text = repr((model, [dc.pk for dc in datacenters], tokens, list(opened)))
    name = f"prefill-served-{hashlib.sha256(text.encode()).hexdigest()}"
    return cache.get_or_set(name, figures, KEPT_S) or figures()


def _that_fits(forecast: Supply, model: str, datacenters: Sequence[DataCenter]) -> Supply:
    """The supply for shorter prompts, where no bubble takes the ones that it was asked for."""
    if forecast.running or not 0 < forecast.longest < forecast.tokens:
        return forecast
    return supply(model, datacenters, forecast.longest, planned=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversold:
    """More is sold than is there, in whole tokens per minute: what is granted now, what other tenancies hold
    in these data centres, and what their runs supply."""

    granted: int
    sold: int
    supply: int
    unforeseen: int

    @property
    def key(self) -> str:
        """What a confirmation of just these figures says."""
        return f"{self.granted}-{self.sold}-{self.supply}"

    @property
    def text(self) -> str:
        there = f"the runs there supply {self.supply:,} tokens/min now"
        if not self.supply:
            there = "no run there supplies any now"
        words = (
            f"This grants {self.granted:,} tokens/min. Other tenancies hold {self.sold:,} tokens/min in "
            f"these data centres, and {there}."
        )
        if self.unforeseen:
            words += f" The supply of {self.unforeseen:,} more is not known: no schedule is predicted."
        return words


def oversold(tenancy: Tenancy, datacenters: Sequence[DataCenter], tokens_per_min: int) -> Oversold | None:
    """What granting `tenancy` so much would sell beyond the supply of now; None where it is there."""
    there = supply(tenancy.model, datacenters, tenancy.typical_prompt, planned=False)
    others = sum(rate for _, rate in sold(tenancy.model, datacenters, but=tenancy))
    if others + tokens_per_min <= there.running:
        return None
    return Oversold(
        granted=tokens_per_min,
        sold=round(others),
        supply=int(there.running),
        unforeseen=len(there.unforeseen),
    )

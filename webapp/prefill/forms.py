"""Forms of tenancies and keys. They check and clean; saving is the services' part."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q

from webapp.accounts.models import Team
from webapp.common.formkit import Sectioned
from webapp.common.money import MICRO, exact_dollars, micro_dollars
from webapp.inventory.models import DataCenter
from webapp.prefill.catalogue import context_tokens, gpu_types, models
from webapp.prefill.models import (
    ASKERS,
    MOST_DAYS,
    MOST_PRICE,
    MOST_PROMPT_TOKENS,
    MOST_TOKENS_PER_MIN,
    MOST_TTFT_MS,
    Tenancy,
    TenancyPlace,
)
from webapp.prefill.offers import Oversold
from webapp.prefill.prices import own_prices
from webapp.prefill.served import coordinators_in, open_places, served_models
from webapp.prefill.services import Limits
from webapp.prefill.services.keys import MOST_OVERLAP_H


def _offered(teams: Any) -> Any:
    """Data centres of `teams` with an open coordinator, or with GPUs on which some model's prefill was
    measured.
    """
    has_profile = Q(pools__gpu_type__in={gpu for model in models() for gpu in gpu_types(model)})
    rows = DataCenter.objects.filter(
        has_profile | Q(pk__in=coordinators_in(teams).values("dc")), team__in=teams
    )
    return rows.distinct().order_by("name")


class DataCentersField(forms.ModelMultipleChoiceField):
    """Data centres to tick; of several teams, with the team's name."""

    several_teams = False

    def label_from_instance(self, obj: Any) -> str:
        return f"{obj.name} ({obj.team})" if self.several_teams else obj.name


def _about(model: str, is_served: bool, price: int | None) -> str:
    """A model as a tenant chooses it: whether it is served now, and what it cost this tenant last."""
    about = [model, *(["served now"] if is_served else [])]
    return ", ".join(about if price is None else [*about, f"{exact_dollars(price)} $/M prompt tokens before"])


class TenancyForm(Sectioned, forms.ModelForm):
    """What a tenant asks for."""

    layout = [
        ("Request", "", ["team", "name", "purpose", "model"]),
        (
            "Location",
            "Data centres that serve prefill now, or whose GPU type the model was measured on",
            ["datacenters"],
        ),
        ("Limits", "An admin may grant less", ["asked_tokens_per_min", "asked_ttft_ms", "asked_days"]),
        ("Prompts", "", ["typical_prompt", "asked_longest_prompt"]),
    ]
    model = forms.ChoiceField(
        help_text="Models that runs serve now come first, then those that they will serve or that were "
        "measured. An admin sets the price with the approval."
    )
    datacenters = DataCentersField(
        DataCenter.objects.none(), label="Data centres", widget=forms.CheckboxSelectMultiple
    )

    class Meta:
        model = Tenancy
        fields = [
            "team",
            "name",
            "purpose",
            "model",
            "asked_tokens_per_min",
            "asked_ttft_ms",
            "asked_days",
            "typical_prompt",
            "asked_longest_prompt",
        ]
        labels = {
            "name": "Name",
            "purpose": "Purpose",
            "asked_tokens_per_min": "Prompt tokens per minute",
            "asked_ttft_ms": "Time to first token, ms",
            "asked_days": "Term, days",
            "typical_prompt": "Typical prompt, tokens",
            "asked_longest_prompt": "Longest prompt, tokens",
        }
        help_texts = {
            "name": "A name for you and the admins. No other tenancy of the team may have it.",
            "purpose": "What you use the prompts for. An admin reads it.",
            "asked_ttft_ms": "Prefill and the KV transfer finish within this time, or the request is "
            "refused at once.",
            "typical_prompt": "The forecast uses this length.",
        }

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        teams = Team.objects.with_role(user, ASKERS)
        self._offer_models(user, teams)
        team: Any = self.fields["team"]
        team.queryset, team.empty_label = teams, None
        only = list(teams[:2])
        if len(only) == 1:
            team.widget, team.initial = forms.HiddenInput(), only[0]
        place: Any = self.fields["datacenters"]
        place.several_teams = len(only) > 1
        place.queryset = _offered(teams).select_related("team")
        for name, value in (("asked_tokens_per_min", 60_000), ("asked_ttft_ms", 2_000), ("asked_days", 90)):
            self.fields[name].initial = value

    def _offer_models(self, user: Any, teams: Any) -> None:
        """Those that are served now first, then those that runs will serve, then those that were measured."""
        now, prices = set(coordinators_in(teams).values_list("model", flat=True)), own_prices(user)
        soon = served_models(teams)
        names = sorted({*models(), *soon}, key=lambda name: (name not in now, name not in soon, name))
        choice: Any = self.fields["model"]
        choice.choices = [(name, _about(name, name in now, prices.get(name))) for name in names]
        choice.initial = names[0] if names else None
        if not now:
            choice.help_text = f"No run serves a model now. {choice.help_text}"

    def _post_clean(self) -> None:
        """The service checks the whole request, and says what is wrong at its fields."""
        for name in self._meta.fields or ():
            if name in self.cleaned_data:
                setattr(self.instance, name, self.cleaned_data[name])


class ReviewForm(Sectioned, forms.Form):
    """What an admin grants, and why; or why not."""

    tokens_per_min = forms.IntegerField(label="Tokens per minute", min_value=1, max_value=MOST_TOKENS_PER_MIN)
    longest_prompt = forms.IntegerField(
        label="Longest prompt, tokens", min_value=1, max_value=MOST_PROMPT_TOKENS
    )
    ttft_ms = forms.IntegerField(label="TTFT, ms", min_value=1, max_value=MOST_TTFT_MS)
    price = forms.DecimalField(
        label="Price, $/M prompt tokens",
        min_value=0,
        max_value=MOST_PRICE // MICRO,
        max_digits=10,
        decimal_places=6,
    )
    days = forms.IntegerField(label="Term, days", min_value=1, max_value=MOST_DAYS)
    datacenters = forms.ModelMultipleChoiceField(
        DataCenter.objects.none(), label="Data centres", widget=forms.CheckboxSelectMultiple
    )
    reason = forms.CharField(
        label="Reason, shown to the tenant", max_length=400, required=False, widget=forms.Textarea
    )
    # The figures of `Oversold` that the admin has confirmed; asked for when they are too much.
    oversell = forms.CharField(
        label="Grant more than is there", max_length=80, required=False, widget=forms.HiddenInput
    )

    def __init__(self, *args: Any, tenancy: Tenancy, **kwargs: Any) -> None:
        kwargs.setdefault("initial", first_limits(tenancy))
        super().__init__(*args, **kwargs)
        places = TenancyPlace.objects.filter(tenancy=tenancy)
        place: Any = self.fields["datacenters"]
        place.queryset = DataCenter.objects.filter(pk__in=places.values("dc")).order_by("name")
        self.fields["longest_prompt"].help_text = f"At most {context_tokens(tenancy.model):,}."
        self.fields["reason"].widget.attrs["rows"] = 3

    def ask_to_oversell(self, figures: Oversold) -> None:
        """Show a box to tick, which confirms these figures and no others."""
        field = self.fields["oversell"]
        field.widget = forms.CheckboxInput({"value": figures.key}, check_test=lambda value: False)
        field.help_text = "Tick this to approve these figures anyway."

    def limits(self) -> Limits:
        data = self.cleaned_data
        whole = {name: data[name] for name in ("tokens_per_min", "ttft_ms", "longest_prompt", "days")}
        return Limits(price=micro_dollars(data["price"]), **whole)


def first_limits(tenancy: Tenancy) -> dict[str, Any]:
    """What the review begins with: as asked, or, for a renewal, as granted."""
    return {
        "tokens_per_min": tenancy.tokens_per_min or tenancy.asked_tokens_per_min,
        "ttft_ms": tenancy.ttft_ms or tenancy.asked_ttft_ms,
        "longest_prompt": tenancy.longest_prompt or tenancy.asked_longest_prompt,
        "price": None if tenancy.price is None else f"{tenancy.price / MICRO:.6f}".rstrip("0").rstrip("."),
        "days": tenancy.renewal_days or tenancy.asked_days,
        "datacenters": [dc.pk for dc in tenancy.datacenters],
    }


class ReasonForm(Sectioned, forms.Form):
    reason = forms.CharField(label="Reason, shown to the tenant", max_length=400)


class RenewalForm(Sectioned, forms.Form):
    days = forms.IntegerField(label="Additional days", min_value=1, max_value=MOST_DAYS, initial=90)


class TenancyField(forms.ModelChoiceField):
    """Tenancies with their models, and whether a run serves these now."""

    def label_from_instance(self, obj: Any) -> str:
        return f"{obj}: {obj.model}, {'served now' if obj.pk in self.served else 'served by no run now'}"

    served: frozenset[int] = frozenset()


class KeyForm(Sectioned, forms.Form):
    tenancy = TenancyField(Tenancy.objects.none(), empty_label=None)
    name = forms.CharField(max_length=60, help_text="What uses the key, for example search-eu.")

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        place: Any = self.fields["tenancy"]
        rows = Tenancy.objects.visible_to(user).in_force().filter(tenant=user)
        place.queryset = rows.prefetch_related("places__dc")
        opened = open_places(list(place.queryset))
        place.served = frozenset(pk for pk, dcs in opened.items() if dcs)
        place.initial = next((pk for pk, dcs in opened.items() if dcs), None)


class RotateForm(Sectioned, forms.Form):
    overlap_h = forms.FloatField(
        label="Validity of the old key, h",
        min_value=0,
        max_value=MOST_OVERLAP_H,
        initial=24,
        help_text="Enter 0 to end it at once.",
    )

    def clean_overlap_h(self) -> float:
        value = float(self.cleaned_data["overlap_h"])
        if value != value:
            raise ValidationError("Must be a number of hours.")
        return value

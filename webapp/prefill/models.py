"""Tenancies: who may use idle GPU time for prefill, how much, at what price; keys; what was used.

Money is in micro-dollars (millionths of a dollar), whole numbers everywhere; a price is micro-dollars per
million prompt tokens.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from webapp.accounts.models import Role, Team, User
from webapp.common.search import Words
from webapp.inventory.models import DataCenter

MOST_TOKENS_PER_MIN = 1_000_000_000
MOST_TTFT_MS = 600_000
MOST_DAYS = 366
MOST_PROMPT_TOKENS = 1_000_000
MOST_PRICE = 1_000_000_000  # micro-dollars per million tokens: 1,000 $
TOKENS_OF_PRICE = 1_000_000
# Who may ask for a tenancy of a team; only admins decide, and never on their own request.
ASKERS = (Role.TENANT, Role.OPERATOR, Role.ADMIN)


class TenancyStatus(models.TextChoices):
    REQUESTED = "requested", "Waiting for a decision"
    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"
    REFUSED = "refused", "Refused"
    WITHDRAWN = "withdrawn", "Withdrawn"
    ENDED = "ended", "Ended"


GRANTED = (TenancyStatus.ACTIVE, TenancyStatus.SUSPENDED, TenancyStatus.ENDED)


class TenancyQuerySet(models.QuerySet["Tenancy"]):
    def visible_to(self, user: Any) -> TenancyQuerySet:
        """Tenancies of the teams that `user` reads, and `user`'s own in teams that they are still in."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        own = Q(tenant=user, team__in=Team.objects.with_role(user, ASKERS))
        return self.filter(Q(team__in=Team.objects.visible_to(user)) | own)

    def in_force(self) -> TenancyQuerySet:
        """Those that prefill is sold to now: active, and not past their end."""
        return self.filter(status=TenancyStatus.ACTIVE, ends_at__gt=timezone.now())

    def to_decide(self) -> TenancyQuerySet:
        """Those that wait for an admin: new ones, and renewals."""
        return self.filter(Q(status=TenancyStatus.REQUESTED) | Q(renewal_days__isnull=False))


def _at_least_one(most: int) -> list[Any]:
    return [MinValueValidator(1), MaxValueValidator(most)]


class Tenancy(models.Model):
    """What a tenant asked for, and, once approved, what was granted.

    asked_* : as the tenant asked.  tokens_per_min, ttft_ms, longest_prompt, price, ends_at : as granted.
    ttft_ms : time to first token, in which the prefill and the transfer of its KV cache must be done.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="tenancies")  # who sells
    tenant = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="tenancies"
    )  # who buys
    name = models.CharField(max_length=80)
    purpose = models.CharField(max_length=300, blank=True)
    model = models.CharField(max_length=128)
    asked_tokens_per_min = models.PositiveBigIntegerField(validators=_at_least_one(MOST_TOKENS_PER_MIN))
    asked_ttft_ms = models.PositiveIntegerField(validators=_at_least_one(MOST_TTFT_MS))
    asked_days = models.PositiveIntegerField(validators=_at_least_one(MOST_DAYS))
    typical_prompt = models.PositiveIntegerField(
        default=1024, validators=_at_least_one(MOST_PROMPT_TOKENS)
    )  # tokens
    asked_longest_prompt = models.PositiveIntegerField(
        default=4096, validators=_at_least_one(MOST_PROMPT_TOKENS)
    )

    status = models.CharField(
        max_length=10, choices=TenancyStatus.choices, default=TenancyStatus.REQUESTED, editable=False
    )
    reason = models.CharField(max_length=500, blank=True)  # of the last decision; the tenant reads it
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    decided_at = models.DateTimeField(null=True)
    tokens_per_min = models.PositiveBigIntegerField(null=True)
    ttft_ms = models.PositiveIntegerField(null=True)
    longest_prompt = models.PositiveIntegerField(null=True)  # tokens
    price = models.PositiveBigIntegerField(null=True)  # micro-dollars per million prompt tokens
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    renewal_days = models.PositiveIntegerField(null=True, validators=_at_least_one(MOST_DAYS))
    renewal_asked_at = models.DateTimeField(null=True)
    end_told = models.DateTimeField(null=True)  # the `ends_at` that both sides were warned of
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TenancyQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "tenancies"
        indexes = [
            models.Index(fields=["team", "status"]),
            models.Index(fields=["-created_at", "-id"], name="tenancy_newest_first"),
            GinIndex(Words("name", "model", "purpose"), name="tenancy_words"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                name="tenancy_name_unique",
                violation_error_message="The team has a tenancy of this name already.",
            ),
            models.CheckConstraint(condition=Q(status__in=TenancyStatus.values), name="tenancy_status_known"),
            models.CheckConstraint(
                condition=~Q(status__in=GRANTED)
                | Q(
                    tokens_per_min__gte=1,
                    ttft_ms__gte=1,
                    longest_prompt__gte=1,
                    price__isnull=False,
                    starts_at__isnull=False,
                    ends_at__isnull=False,
                    decided_by__isnull=False,
                ),
                name="tenancy_granted_has_limits",
            ),
            models.CheckConstraint(
                condition=Q(decided_by__isnull=True) | ~Q(decided_by=F("tenant")),
                name="tenancy_not_decided_by_tenant",
            ),
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="tenancy_ends_after_start",
            ),
            models.CheckConstraint(
                condition=Q(renewal_days__isnull=True) | Q(status__in=GRANTED),
                name="tenancy_renewal_of_granted",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> TenancyStatus:
        """The status; past its end a tenancy has ended, whether or not upkeep has written it down yet."""
        over = self.ends_at is not None and self.ends_at <= timezone.now()
        reserved = (TenancyStatus.ACTIVE, TenancyStatus.SUSPENDED)
        return TenancyStatus.ENDED if over and self.status in reserved else TenancyStatus(self.status)

    @property
    def waits(self) -> bool:
        """Whether an admin has to decide."""
        return self.status == TenancyStatus.REQUESTED or self.renewal_days is not None

    @property
    def waits_since(self) -> datetime | None:
        return self.created_at if self.status == TenancyStatus.REQUESTED else self.renewal_asked_at

    @property
    def datacenters(self) -> list[DataCenter]:
        """Those granted; before a decision those asked for. (Prefetch `places__dc`.)"""
        granted = self.decided_at is not None and self.status != TenancyStatus.REFUSED
        return [place.dc for place in self.places.all() if place.is_granted or not granted]

    @property
    def used_names(self) -> list[str]:
        """What the API calls the model: model@dc, for each data centre."""
        return [f"{self.model}@{dc.name}" for dc in self.datacenters]


class TenancyPlace(models.Model):
    """A data centre that a tenancy asked for."""

    tenancy = models.ForeignKey(Tenancy, on_delete=models.CASCADE, related_name="places")
    dc = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    is_granted = models.BooleanField(default=False)

    class Meta:
        ordering = ["dc__name"]
        constraints = [
            models.UniqueConstraint(fields=["tenancy", "dc"], name="tenancyplace_unique"),
        ]

    def __str__(self) -> str:
        return str(self.dc)


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    def visible_to(self, user: Any) -> ApiKeyQuerySet:
        """Keys of the user's own tenancies, and of the teams that they administer."""
        if not user.is_authenticated or not user.is_active:
            return self.none()
        own = Q(tenancy__tenant=user, tenancy__team__in=Team.objects.with_role(user, ASKERS))
        return self.filter(own | Q(tenancy__team__in=Team.objects.administered_by(user)))

    def live(self) -> ApiKeyQuerySet:
        """Those that open the API."""
        now = timezone.now()
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)


class KeyState(models.TextChoices):
    """Derived, never stored."""

    LIVE = "active", "Active"
    EXPIRING = "stopping", "Replaced, still valid"
    EXPIRED = "expired", "Expired"
    REVOKED = "revoked", "Revoked"


class ApiKey(models.Model):
    """A key of a tenancy. The database has its hash; the key itself is shown once, when it is made."""

    tenancy = models.ForeignKey(Tenancy, on_delete=models.PROTECT, related_name="keys")
    name = models.CharField(max_length=60)
    prefix = models.CharField(max_length=16, editable=False)  # its beginning, to tell keys apart
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)  # set when it was replaced
    revoked_at = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True)  # within a minute

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name = "API key"
        indexes = [models.Index(fields=["-created_at", "-id"], name="apikey_newest_first")]

    def __str__(self) -> str:
        return f"{self.prefix}… {self.name}"

    @property
    def state(self) -> KeyState:
        if self.revoked_at:
            return KeyState.REVOKED
        if self.expires_at is None:
            return KeyState.LIVE
        return KeyState.EXPIRING if self.expires_at > timezone.now() else KeyState.EXPIRED


class Outcome(models.TextChoices):
    """How a request ended. Only what was delivered is charged."""

    DELIVERED = "delivered", "Delivered"
    REFUSED = "refused", "Refused"
    ABORTED = "aborted", "Aborted"


def charge_of(prompt_tokens: int, price: int) -> int:
    """Micro-dollars for a delivered prompt, rounded half up, at `price` micro-dollars per million tokens."""
    return (prompt_tokens * price + TOKENS_OF_PRICE // 2) // TOKENS_OF_PRICE


class RequestQuerySet(models.QuerySet[Any]):
    def visible_to(self, user: Any) -> Self:
        """Requests of the user's own tenancies, and of the teams that they read."""
        return self.filter(tenancy__in=Tenancy.objects.visible_to(user))


class UsageEvent(models.Model):
    """One request and what it cost. Written once: a trigger of the database refuses change and deletion.

    It holds no part of the prompt.
    """

    request_id = models.CharField(max_length=64, unique=True)
    tenancy = models.ForeignKey(Tenancy, on_delete=models.PROTECT, related_name="usage")
    key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+")
    dc = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()  # when it arrived
    outcome = models.CharField(max_length=10, choices=Outcome.choices)
    reason = models.CharField(max_length=40, blank=True)  # of a refusal or abortion
    prompt_tokens = models.PositiveBigIntegerField()
    ttft_ms = models.FloatField(null=True)
    ttft_objective_ms = models.PositiveIntegerField(null=True)  # none of requests in batches
    price = models.PositiveBigIntegerField()  # micro-dollars per million prompt tokens, as it was then
    charge = models.PositiveBigIntegerField()  # micro-dollars

    objects = RequestQuerySet.as_manager()

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["tenancy", "-at"], name="usageevent_of_tenancy"),
            models.Index(fields=["-at", "-id"], name="usageevent_newest_first"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(outcome__in=Outcome.values), name="usageevent_outcome_known"),
            models.CheckConstraint(
                condition=Q(outcome=Outcome.DELIVERED, reason="", ttft_ms__isnull=False)
                | (~Q(outcome=Outcome.DELIVERED) & ~Q(reason="")),
                name="usageevent_reason_iff_not_delivered",
            ),
            models.CheckConstraint(
                condition=Q(
                    outcome=Outcome.DELIVERED,
                    charge=(F("prompt_tokens") * F("price") + TOKENS_OF_PRICE // 2) / TOKENS_OF_PRICE,
                )
                | (~Q(outcome=Outcome.DELIVERED) & Q(charge=0)),
                name="usageevent_charge_is_price",
            ),
        ]

    def __str__(self) -> str:
        return self.request_id


class OpenRequest(models.Model):
    """A request that was admitted and of which nobody has written yet what came of it.

    It is written before the request goes to a prefill coordinator, and taken away in the transaction that
    writes its UsageEvent. One that outlives its web process is closed by upkeep. It is no charge.
    """

    request_id = models.CharField(max_length=64, unique=True)
    tenancy = models.ForeignKey(Tenancy, on_delete=models.PROTECT, related_name="open_requests")
    key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+")
    dc = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")  # one where it may run
    at = models.DateTimeField()  # when it arrived
    in_batch = models.BooleanField(default=False)

    objects = RequestQuerySet.as_manager()

    class Meta:
        ordering = ["at", "id"]
        indexes = [models.Index(fields=["at"], name="openrequest_oldest_first")]

    def __str__(self) -> str:
        return self.request_id


class NoticeQuerySet(models.QuerySet["Notice"]):
    def visible_to(self, user: Any) -> NoticeQuerySet:
        """Those that `user` got."""
        return self.filter(user=user) if user.is_authenticated else self.none()


class Notice(models.Model):
    """Something about a tenancy that somebody is told: on their page, and by mail where a server is named."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notices")
    tenancy = models.ForeignKey(Tenancy, on_delete=models.CASCADE, related_name="notices")
    text = models.CharField(max_length=600)
    at = models.DateTimeField(auto_now_add=True)
    mailed_at = models.DateTimeField(null=True)
    mail_tries = models.PositiveIntegerField(default=0)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["user", "-at"]),
            models.Index(fields=["at"], condition=Q(mailed_at=None), name="notice_to_mail"),
        ]

    def __str__(self) -> str:
        return self.text

"""API keys: shown once, replaced with overlap, worthless the moment they are revoked."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from tests.site.house import rows
from tests.site.tenancies import ask, give_key, grant, second_tenant
from webapp.prefill import services
from webapp.prefill.models import ApiKey


def test_the_database_has_a_hash_and_the_beginning(world: Any) -> None:
    key, text = give_key(world)
    held = " ".join(str(value) for value in ApiKey.objects.values().get(pk=key.pk).values())
    assert text not in held
    assert text.startswith(key.prefix)
    assert len(text) > 40
    assert text not in str(list(rows("create").values("after", "object_label")))


def test_a_request_has_no_key(world: Any) -> None:
    with pytest.raises(ValidationError, match="cannot have keys"):
        give_key(world, ask(world))


def test_a_key_is_made_by_its_tenant_alone(world: Any) -> None:
    tenancy = grant(world)
    for actor in (world.users["admin"], second_tenant(world)):
        with pytest.raises(PermissionDenied):
            services.make_key(actor, tenancy, "mine")


def test_two_keys_work_at_once_and_no_third(world: Any) -> None:
    key, _ = give_key(world)
    give_key(world, key.tenancy)
    with pytest.raises(ValidationError, match="Revoke one"):
        give_key(world, key.tenancy)
    services.revoke_key(key.tenancy.tenant, key)
    give_key(world, key.tenancy)


def test_a_replaced_key_works_until_its_overlap_is_over(world: Any) -> None:
    key, _ = give_key(world)
    new, _ = services.rotate_key(key.tenancy.tenant, key, 24)
    assert set(ApiKey.objects.live()) == {key, new}
    with pytest.raises(ValidationError, match="already"):
        services.rotate_key(key.tenancy.tenant, key, 24)
    with pytest.raises(ValidationError, match="168"):
        services.rotate_key(key.tenancy.tenant, new, 169)
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert list(ApiKey.objects.live()) == [new]


def test_an_admin_may_revoke_but_another_tenant_may_not(world: Any) -> None:
    key, _ = give_key(world)
    with pytest.raises(PermissionDenied):
        services.revoke_key(second_tenant(world), key)
    services.revoke_key(world.users["admin"], key)
    assert not ApiKey.objects.live().exists()
    assert key.tenancy.tenant.notices.filter(text__contains="was revoked by admin").exists()


def test_use_is_noted_once_a_minute(world: Any, django_assert_num_queries: Any) -> None:
    key, _ = give_key(world)
    services.note_key_use(key)
    key.refresh_from_db()
    assert key.used_at
    with django_assert_num_queries(0):
        services.note_key_use(key)

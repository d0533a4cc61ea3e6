"""Every service function that changes state leaves an audit row; a new one without an entry is noticed."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import webapp
from tests.site.service_calls import CALLS, NOTES, READS
from tests.site.test_writes import WRITES
from webapp.accounts.models import AuditEntry

WHERE = "tests/site/service_calls.py"
ENTRIES = {"CALLS": set(CALLS), "NOTES": set(NOTES), "READS": set(READS)}


def service_modules() -> Iterator[tuple[str, ModuleType]]:
    """(app, module) of every services module, and of every module of a services package."""
    for app in sorted(path.name for path in Path(webapp.__path__[0]).iterdir() if path.is_dir()):
        name = f"webapp.{app}.services"
        if importlib.util.find_spec(f"webapp.{app}") is None or importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        if app != "supervisor":  # its services are processes
            yield app, module
            for part in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
                yield app, importlib.import_module(part.name)


def service_functions() -> dict[str, Any]:
    """{"<app>.<function>": function} of the public functions that these modules define."""
    functions = {}
    for app, module in service_modules():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                functions[f"{app}.{name}"] = function
    return functions


FUNCTIONS = service_functions()


def test_every_service_function_has_one_entry() -> None:
    known = [name for names in ENTRIES.values() for name in names]
    twice = sorted({name for name in known if known.count(name) > 1})
    assert not twice, f"in two lists of {WHERE}: {twice}"
    missing = sorted(set(FUNCTIONS) - set(known))
    lines = "\n".join(f'    "{name}": lambda w: partial({name}, …),' for name in missing)
    assert not missing, (
        f"add to CALLS in {WHERE} (to NOTES, with the reason, where machines report; to READS where no row "
        f"is changed; or make the function private):\n{lines}"
    )
    gone = sorted(set(known) - set(FUNCTIONS))
    assert not gone, f"take these out of {WHERE}, there is no such function: {gone}"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_change_leaves_an_audit_row(world: Any, name: str) -> None:
    rows = rows_written_by(world, name, CALLS[name])
    assert rows, f"{name} changed state without an audit row: call webapp.accounts.services.record in it"


@pytest.mark.parametrize("name", sorted(NOTES))
def test_what_only_notes_writes_no_row(world: Any, name: str) -> None:
    prepare, reason = NOTES[name]
    assert reason
    assert not rows_written_by(world, name, prepare), f"{name} writes a row: move it to CALLS in {WHERE}"


def rows_written_by(world: Any, name: str, prepare: Any) -> int:
    """How many audit rows the call itself writes; what prepares it does not count."""
    call = prepare(world)
    assert name in FUNCTIONS, f"take {name} out of {WHERE}: there is no such function"
    assert call.func is FUNCTIONS[name], f"the entry of {name} in {WHERE} calls something else: {call}"
    before = AuditEntry.objects.count()
    call()
    return AuditEntry.objects.count() - before


@pytest.mark.parametrize("name", sorted(READS))
def test_what_only_reads_does_not_write(name: str) -> None:
    assert READS[name]
    source = inspect.getsource(FUNCTIONS[name]).replace("client.delete(", "")  # a key of the broker, no row
    assert not WRITES.search(source), f"{name} writes: move it to CALLS in {WHERE}"

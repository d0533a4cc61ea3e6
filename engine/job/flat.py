"""Flat documents of `meridian train`: the one converter that puts their fields into sections.

Before a job had sections, all its fields stood side by side. Such documents stay valid for ever. An error in
one names the field as the user wrote it.
"""

from dataclasses import dataclass
from typing import Any

from engine.errors import InputError
from engine.inputs import nearest
from engine.job.sections.data import DataSection
from engine.job.sections.paths import PATHS
from engine.job.sections.strategy import DEFAULT_TIME_LIMIT_S, PIPELINE, SWAP

NOTICE = (
    "the document has flat fields: they stay valid; docs/training.md shows the sections that hold them now"
)
_SECTIONS = (
    "datacenters",
    "links",
    "cell",
    "model",
    "data",
    "device",
    "optimizer",
    "persistence",
    "failures",
    "tracking",
    "strategy",
    "prefill",
    "tls",
)
_REQUIRED = {"cell", "optimizer", "strategy"}
_SWAP = "swap"  # the flat field; its parts are those of the strategy
_NAMES = (*PATHS, _SWAP)
# Fields that say how a schedule is made: a flat document with strategy swap leaves them out.
_OF_SCHEDULES = {
    "policy": "must be left out: the order is that of ATOM",
    "chunks": "must be left out: the planner cuts the model into sub-models",
    "sharing": "must be left out: only the all-reduce crosses links",
    "memory_limit": "must be left out: swap.gpu.memory_bytes is the limit",
    "full_limit": "must be left out: swap.gpu.memory_bytes is the limit",
    **dict.fromkeys(
        ("contention", "recompute_rule", "traversal", "schedule", "time_limit_s"),
        "must be left out: it belongs to schedules of pipelines",
    ),
}
_SAID_OF_SWAP = {"policy": SWAP, "time_limit_s": DEFAULT_TIME_LIMIT_S}  # as earlier versions wrote them out


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A document in sections, and which of them come from flat fields."""

    document: dict[str, Any]
    flat_sections: frozenset[str] = frozenset()

    @property
    def is_flat(self) -> bool:
        """Whether any field was flat."""
        return bool(self.flat_sections)

    def named(self, error: InputError) -> InputError:
        """The error with its field as the user wrote it."""
        return InputError(self._name(error.field), error.value, error.allowed) if self.is_flat else error

    def _name(self, field: str) -> str:
        section = field.partition(".")[0]
        if section not in self.flat_sections:
            return field
        if section == "strategy" and self.document["strategy"].get("kind") == SWAP:
            rest = field.removeprefix("strategy")
            return "strategy" if rest == ".kind" else f"{_SWAP}{rest}"
        for name, path in PATHS.items():
            if field == path or field.startswith((f"{path}.", f"{path}[")):
                return name + field[len(path) :]
        return field


def converted(document: dict[str, Any]) -> Conversion:
    """The document in sections; one that has them comes back as it is.

    Raises
    ------
    InputError
        A flat field belongs into a section that is given too, or no field has such a name.
    """
    flat = [name for name in document if _is_flat(name, document)]
    if not flat:
        return Conversion(document=document)
    sections = {name: value for name, value in document.items() if name not in flat}
    _check_names(sections)
    parts: dict[str, dict[str, Any]] = {name: {} for name in _REQUIRED - sections.keys()}
    for name in flat:
        path = PATHS.get(name, "strategy")
        section, _, field = path.partition(".")
        if section in sections:
            allowed = f"write it as {path}: the document has the section {section} too"
            raise InputError(name, document[name], allowed)
        parts.setdefault(section, {})[field] = document[name]
    if "strategy" in parts:
        parts["strategy"] = _strategy(document, flat)
    return Conversion(document={**sections, **parts}, flat_sections=frozenset(parts))


def in_sections(document: dict[str, Any]) -> dict[str, Any]:
    """The document of `converted`."""
    return converted(document).document


def _is_flat(name: Any, document: dict[str, Any]) -> bool:
    if name not in _NAMES:
        return False
    value = document[name]
    if name == "data":
        return not isinstance(value, dict) or _by_datacenter(value, document)
    return name not in _SECTIONS or not isinstance(value, dict)


def _by_datacenter(data: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether `data` gives files by the name of their data centre, rather than being the section.

    A data centre may be called as a field of the section is: {files: PATH} means the same both ways.
    """
    if not data or not all(isinstance(path, str) for path in data.values()):
        return False
    sites = document.get("datacenters")
    named = [site.get("name") for site in sites if isinstance(site, dict)] if isinstance(sites, list) else []
    others = (name for name in document if name != "data")
    if data.keys() <= DataSection.model_fields.keys():
        is_flat = (
            "prepared" in data and "prepared" in named and any(_is_flat(name, document) for name in others)
        )
        return "validation" in data or is_flat
    return any(name in named for name in data) or any(_is_flat(name, document) for name in others)


def _check_names(sections: dict[str, Any]) -> None:
    for name, value in sections.items():
        if name not in _SECTIONS:
            known = dict.fromkeys((*_NAMES, *_SECTIONS))
            raise InputError(str(name), value, "unknown field, " + nearest(str(name), known))


def _strategy(document: dict[str, Any], flat: list[str]) -> dict[str, Any]:
    """The section of the flat fields of `document` that say how the job runs."""
    kind = document["strategy"] if "strategy" in flat else PIPELINE
    swap = document.get(_SWAP)
    if kind == SWAP:
        for name in flat:
            if name in _OF_SCHEDULES and document[name] not in (None, _SAID_OF_SWAP.get(name)):
                raise InputError(name, document[name], _OF_SCHEDULES[name])
        if swap is None:
            allowed = "required with strategy swap: {gpu: {memory_bytes, host_to_device_gb_s}}"
            raise InputError(_SWAP, None, allowed)
        if not isinstance(swap, dict):
            raise InputError(_SWAP, swap, "must be an object with named fields")
        return {**swap, "kind": SWAP}
    if swap is not None:
        raise InputError(_SWAP, swap, "applies only to strategy swap")
    fields = [name for name in flat if PATHS.get(name, "").startswith("strategy.")]
    return {**{name: document[name] for name in fields if name != "strategy"}, "kind": kind}

"""The forms of the Traces pages: an upload, and what-ifs about a trace."""

import math
import zlib
from collections.abc import Sequence
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from engine.analyze.formats import EVENTS, KNOWN, LOOKED_AT, PARQUET, PROFILES, format_of
from engine.schedule.scenario import POLICIES
from webapp.accounts.forms import ForTeam
from webapp.common.asked_once import key_field
from webapp.common.formkit import Sectioned, policy_choices
from webapp.common.number_lists import Numbers
from webapp.traces.work import META

MOST_FILES = 100
LONGEST_NAME = 120  # of a file, bytes
GZIP = b"\x1f\x8b"
MOST_FACTOR = 1e9  # as the engine's


class _SeveralFiles(forms.ClearableFileInput):
    allow_multiple_selected = True


class TraceFiles(forms.FileField):
    """The files of one trace, in the order in which they were chosen."""

    widget = _SeveralFiles

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile]:
        files = data if isinstance(data, list | tuple) else [data]
        if len(files) > MOST_FILES:
            raise forms.ValidationError(f"{len(files)} files. A trace may have at most {MOST_FILES}.")
        cleaned = [super(TraceFiles, self).clean(file, initial) for file in files or [None]]
        require_trace(cleaned)
        return cleaned


def require_trace(files: Sequence[UploadedFile]) -> None:
    """Raise ValidationError unless the files are one trace of a known format, by what they hold."""
    names = [str(file.name) for file in files]
    for name in names:
        if len(name.encode()) > LONGEST_NAME:
            allowed = f"A file's name may have at most {LONGEST_NAME} bytes"
            raise forms.ValidationError(f"{allowed}; {name[:40]}… has {len(name.encode())}.")
    if len(set(names)) < len(names):
        raise forms.ValidationError("Two files have the same name. Give each rank's file a name of its own.")
    traces = [file for file in files if not str(file.name).endswith(META)]
    metas = len(files) - len(traces)
    formats = [_format(file) for file in traces]
    if metas and (metas > 1 or formats != [PARQUET]):
        raise forms.ValidationError(
            "A YAML file describes the layout of one parquet file: upload the two together."
        )
    if len(traces) > 1:
        other = next((f for f, kind in zip(traces, formats, strict=True) if kind != EVENTS), None)
        ended = next((f for f in traces if not str(f.name).endswith(PROFILES)), None)
        if (wrong := other or ended) is not None:
            raise forms.ValidationError(
                f"{wrong.name} is no profile of a rank. Several files must be the profiles of all ranks by "
                f"torch.profiler, whose names end with {' or '.join(PROFILES)}."
            )


def _format(file: UploadedFile) -> str:
    file.seek(0)
    begin = file.read(LOOKED_AT)
    file.seek(0)
    if begin.startswith(GZIP):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(begin, LOOKED_AT)
        except zlib.error:
            raise forms.ValidationError(f"{file.name} is gzip that cannot be unpacked.") from None
    format_name = format_of(begin)
    if format_name is None:
        raise forms.ValidationError(f"{file.name} is no trace that this page reads. It must be {KNOWN}.")
    return format_name


class TraceForm(Sectioned, ForTeam):
    """One trace of a team."""

    name = forms.CharField(
        max_length=80, required=False, help_text="Leave empty to use the name of the first file."
    )
    trace = TraceFiles(
        label="Files",
        help_text="One file, or the profiles of all ranks of one run. A parquet file of ByteDance's may come "
        "with its YAML file.",
    )

    layout = [("Trace", "", ["team", "name", "trace"])]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not cleaned.get("name") and cleaned.get("trace"):
            cleaned["name"] = str(cleaned["trace"][0].name)[:80]
        return cleaned


class WhatIfForm(Sectioned, forms.Form):
    """Questions about a trace of `stages` stages; `questions` holds them once the form is valid."""

    equal_workers = forms.BooleanField(
        required=False, label="Equal workers: every op takes the mean of its kind and stage"
    )
    policy = forms.ChoiceField(
        choices=[("", "as measured"), *policy_choices(POLICIES)], required=False, label="Another policy"
    )
    latency_ms = forms.FloatField(
        label="Link latency, ms",
        min_value=0,
        max_value=1e9,
        required=False,
        help_text="One way, of every hop between stages. Leave both empty to keep the links.",
    )
    transfer_ms = forms.FloatField(
        label="Link transfer, ms",
        min_value=0,
        max_value=1e9,
        required=False,
        help_text="Of one microbatch.",
    )
    factors = Numbers(label="Stage time factors", required=False)

    layout = [
        ("What-ifs", "", ["equal_workers", "policy"]),
        ("Other links", "", ["latency_ms", "transfer_ms"]),
        ("Uneven stages", "", ["factors"]),
    ]

    def __init__(self, *args: Any, stages: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key_field(self)
        self.stages = stages
        self.fields[
            "factors"
        ].help_text = f"One number for each of the {stages} stages. 0.8 makes a stage a fifth faster."
        self.questions: list[str] = []

    def clean_factors(self) -> list[float] | None:
        factors = self.cleaned_data["factors"]
        if factors is None:
            return None
        if len(factors) != self.stages:
            raise forms.ValidationError(f"{len(factors)} numbers: {self.stages} are needed, one per stage.")
        if not all(math.isfinite(factor) and 0 <= factor < MOST_FACTOR for factor in factors):
            raise forms.ValidationError(f"Each must be 0 or more, and below {MOST_FACTOR:,.0f}.")
        return list(factors)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        link = {name: cleaned.get(name) for name in ("latency_ms", "transfer_ms")}
        values = [value for value in link.values() if value is not None]
        for name, value in link.items():
            if values and value is None and name not in self.errors:
                self.add_error(name, "Enter both figures of the links, or none.")
        if self.errors:
            return cleaned
        if cleaned["equal_workers"]:
            self.questions.append("equal-workers")
        if cleaned["policy"]:
            self.questions.append(f"policy={cleaned['policy']}")
        if values:
            self.questions.append("link=" + ",".join(f"{value / 1e3:.9g}" for value in values))
        if cleaned["factors"]:
            self.questions.append("stages=" + ",".join(f"{factor:.9g}" for factor in cleaned["factors"]))
        if not self.questions:
            self.add_error("equal_workers", "Nothing is different. Choose or enter at least one change.")
        return cleaned

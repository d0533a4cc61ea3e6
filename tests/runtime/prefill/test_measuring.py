"""`meridian profile --prefill`: measured times and the model fitted to them, for `prefill replay`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.profile import command
from engine.errors import InputError
from engine.inputs import parse
from engine.prefill.latency import LatencyModel
from engine.prefill.request import ProfileDocument
from engine.serve import measuring
from engine.serve.measuring import LengthTimes, PrefillProfile, PrefillProfileRequest
from tests.runtime.prefill.checkpoints import save

LENGTHS = [8, 64, 128, 192, 256]


def run(folder: Path, *flags: str, **fields: Any) -> str:
    document = {"checkpoint": str(folder), "tokens": LENGTHS, "repeats": 3, "dtype": "fp32"} | fields
    return (
        CliRunner()
        .invoke(command, ["--prefill", "-", *flags], input=json.dumps(document), catch_exceptions=False)
        .stdout
    )


@pytest.mark.parametrize("weights", ["disk", "random"])
def test_every_length_is_timed(weights: str, tmp_path: Path) -> None:
    answer = json.loads(run(save(tmp_path), "--json", weights=weights))
    assert [row["tokens"] for row in answer["rows"]] == LENGTHS
    assert all(0 < row["prefill_ms"] <= row["prefill_p95_ms"] for row in answer["rows"])
    assert answer["points"] == [[row["tokens"], row["prefill_ms"]] for row in answer["rows"]]
    assert (answer["latency"] is None) == (answer["reason"] is not None)
    assert answer["kv_bytes_per_token"] == 4 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, fp32


def test_exact_times_are_fitted_exactly() -> None:
    true = LatencyModel(a_ms=3, b_ms=0.2, c_ms=1e-4)
    rows = tuple(LengthTimes(tokens=n, ms=true.ms(n), p95_ms=true.ms(n)) for n in (10, 50, 100, 400, 900))
    profile = PrefillProfile(rows=rows, weight_bytes=1, token_bytes=1)
    answer = profile.as_dict()
    assert answer["latency"] == pytest.approx({"a_ms": 3, "b_ms": 0.2, "c_ms": 1e-4})
    assert answer["held_out"] == pytest.approx({"mean": 0, "worst": 0, "points": 3}, abs=1e-6)
    assert [row["error"] for row in answer["rows"]] == pytest.approx([0] * 5, abs=1e-6)
    # Either stands in the document of a replay.
    for given in ({"points": answer["points"]}, answer["latency"]):
        assert parse(ProfileDocument, given) is not None


def test_times_that_make_no_model_are_said_to_make_none() -> None:
    rows = tuple(LengthTimes(tokens=n, ms=900 / n, p95_ms=900 / n) for n in (10, 50, 100, 400, 900))
    answer = PrefillProfile(rows=rows, weight_bytes=1, token_bytes=1).as_dict()
    assert answer["latency"] is None
    assert answer["reason"].startswith("times must grow with tokens")


def test_the_table_ends_with_the_model_and_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = LatencyModel(a_ms=3, b_ms=0.2, c_ms=1e-4)

    def foretold(tokens: int, _: object) -> LengthTimes:
        return LengthTimes(tokens=tokens, ms=true.ms(tokens), p95_ms=9.0)

    monkeypatch.setattr(measuring, "_times", foretold)
    lines = run(save(tmp_path)).splitlines()
    assert lines[-2] == "t = 3 + 0.2·s + 0.0001·s² ms for s tokens"
    assert lines[-1] == "on 3 lengths not used for the fit: mean 0.0 %, worst 0.0 %"
    assert lines[-4].split() == ["256", "60.75", "9.00", "60.75"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tokens": [1, 2, 3, 4, 257]}, "tokens[4]"),
        ({"tokens": [1, 2, 3, 4, 4]}, "tokens"),
        ({"tokens": [1, 2, 3]}, "tokens"),
        ({"weights": "none"}, "weights"),
        ({"checkpoint": "/nowhere"}, "checkpoint"),
    ],
)
def test_bad_input_names_the_field(fields: dict, field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run(save(tmp_path), **fields)
    assert caught.value.field == field


def test_the_defaults_are_a_request() -> None:
    assert len(parse(PrefillProfileRequest, {"checkpoint": "x"}).tokens) >= 5

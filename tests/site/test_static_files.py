"""Static files as the ASGI server gives them: whole, a piece at a time, without a warning on the console."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient

from webapp.staticfiles import NAME, _package_data

PLOTLY = f"/static/{NAME}"


@pytest.mark.parametrize(
    ("headers", "status", "part"),
    [({}, 200, slice(None)), ({"range": "bytes=100000-900000"}, 206, slice(100_000, 900_001))],
)
async def test_a_large_file_comes_in_pieces(headers: dict[str, str], status: int, part: slice) -> None:
    whole = (Path(_package_data()) / "plotly.min.js").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer: Any = await AsyncClient().get(PLOTLY, headers=headers)
        pieces = [piece async for piece in answer]
    assert answer.status_code == status
    assert b"".join(pieces) == whole[part]
    assert len(pieces) > 2
    answer.close()

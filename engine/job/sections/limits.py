"""Ranges that several sections of a training job's document share."""

from typing import Annotated

from pydantic import Field

from engine.inputs import Count

MOST_RANKS = 1024
RankCount = Annotated[Count, Field(le=MOST_RANKS)]
Steps = Annotated[Count, Field(le=1_000_000_000)]
PathName = Annotated[str, Field(min_length=1)]

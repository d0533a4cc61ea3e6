"""Find or go to: each app registers how its things are found when it starts (`AppConfig.ready`).

A thing is found by the beginnings of words. Words end at a space or at ASCII punctuation, so "east-1" is
found by "eas", "east 1" and "1". PostgreSQL finds them with its full text search and a GIN index on
`Words` of the columns. Its parser is left out, because it takes "-1" for a number and "a.b" for a host.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from django.contrib.postgres.search import SearchVectorField
from django.db.models import BooleanField, Case, Func, Model, Q, QuerySet, Value, When
from django.db.models.functions import Lower

LONGEST = 200  # characters of what was typed that are read; no name is longer
MOST_WORDS = 8
SHOWN = 5  # of one kind in the list under the field
SHOWN_ON_PAGE = 50
_APART = string.punctuation + "\0"
_SPACES = str.maketrans(_APART, " " * len(_APART))  # as search_words in the database


class Words(Func):
    """The words of text columns that may not be NULL: for a GinIndex, and for `Begin`.

    A function of the migration accounts.0002. It says what it costs, which PostgreSQL would guess far too low
    and then read every row.
    """

    function = "search_words"
    arg_joiner = " || ' ' || "
    output_field = SearchVectorField()


class Begin(Func):
    """Whether one of the words of `columns` begins with `word`."""

    template = "(%(expressions)s::tsquery)"  # the last of them, which @@ parts from the words
    arg_joiner = " @@ "
    output_field = BooleanField()
    conditional = True

    def __init__(self, word: str, *columns: str) -> None:
        # No word holds a quote or a backslash, which end words.
        super().__init__(Words(*columns), Lower(Value(f"'{word}':*")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchText:
    """What was typed: the text without spaces around it, and its words."""

    text: str
    words: tuple[str, ...]

    @classmethod
    def of(cls, typed: str) -> "SearchText":
        """The text of `typed`; only its first LONGEST characters and MOST_WORDS words count."""
        text = " ".join(typed[:LONGEST].replace("\0", " ").split())
        words = dict.fromkeys(text.translate(_SPACES).split())
        return cls(text=text, words=tuple(words)[:MOST_WORDS])

    def rank(self, name: str) -> int:
        """How well `name` fits, 0 best; `ranked` says the same of rows."""
        name, text = name.lower(), self.text.lower()
        if name == text:
            return 0
        if name.startswith(text):
            return 1
        return 2 if text in name else 3

    def fits(self, *texts: str) -> bool:
        """Whether each word begins one of the words of `texts`."""
        parts = words_of(" ".join(texts))
        return all(any(part.startswith(word.lower()) for part in parts) for word in self.words)


def words_of(text: str) -> list[str]:
    """The words of `text`, in small letters, as `Words` has them."""
    return text.translate(_SPACES).lower().split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing that was found. `detail` is what tells it from others of the same name."""

    name: str
    url: str
    detail: str = ""
    rank: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Things that are rows of a table.

    order : kinds that fit equally well stand by it.
    label : of the group, as in "Nodes".
    rows : those that a user may see.
    matches : word → which rows it finds.
    named : the column with the name; how well it fits decides the order.
    hit : row → (name, address, detail).
    """

    order: int
    name: str
    label: str
    rows: Callable[[Any], QuerySet[Any]]
    matches: Callable[[str], Q]
    named: str
    hit: Callable[[Any], tuple[str, str, str]]

    def found(self, user: Any, query: SearchText, most: int) -> list[Hit]:
        """The best `most` of what `user` may see."""
        condition = reduce(and_, map(self.matches, query.words))
        rows = self.rows(user).filter(condition).annotate(rank=ranked(self.named, query))
        hits = []
        for row in rows.order_by("rank", Lower(self.named), "-pk")[:most]:
            name, url, detail = self.hit(row)
            hits.append(Hit(name=name, url=url, detail=detail, rank=row.rank))
        return hits


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Things that are no rows: pages, types of the catalogue.

    things : what a user may see, each as (name, address, detail).
    """

    order: int
    name: str
    label: str
    things: Callable[[Any], Iterable[tuple[str, str, str]]]

    def found(self, user: Any, query: SearchText, most: int) -> list[Hit]:
        """The best `most` of what `user` may see."""
        hits = [
            Hit(name=name, url=url, detail=detail, rank=query.rank(name))
            for name, url, detail in self.things(user)
            if query.fits(name, detail)
        ]
        return sorted(hits, key=lambda hit: hit.rank)[:most]


Kind = Rows | Listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What was found of one kind. `more` says that there is more than `hits`."""

    name: str
    label: str
    hits: Sequence[Hit]
    more: bool


def of_which(of: str, word: str, model: type[Model], *columns: str) -> Q:
    """Rows whose `of` is a row of `model` with a word in `columns` that begins with `word`."""
    rows = model._default_manager.filter(Begin(word, *columns)).order_by()
    return Q(**{f"{of}__in": rows.values("pk")})


def ranked(name: str, query: SearchText) -> Case:
    """How well the column `name` fits, 0 best, as `SearchText.rank` says of a text."""
    return Case(
        When(**{f"{name}__iexact": query.text}, then=0),
        When(**{f"{name}__istartswith": query.text}, then=1),
        When(**{f"{name}__icontains": query.text}, then=2),
        default=3,
    )


_kinds: dict[str, Kind] = {}


def register(*kinds: Kind) -> None:
    """Add kinds; one that is registered again takes its own place."""
    for kind in kinds:
        _kinds[kind.name] = kind


def search(user: Any, query: SearchText, most: int) -> list[Group]:
    """What `user` may see of the text, `most` of a kind; the kind with the best hit comes first."""
    groups = list(_groups(user, query, most)) if query.words else []
    return sorted(groups, key=lambda group: group.hits[0].rank)


def _groups(user: Any, query: SearchText, most: int) -> Iterator[Group]:
    for kind in sorted(_kinds.values(), key=lambda kind: kind.order):
        hits = kind.found(user, query, most + 1)
        if hits:
            yield Group(name=kind.name, label=kind.label, hits=hits[:most], more=len(hits) > most)

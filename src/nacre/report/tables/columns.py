"""Neighbouring columns of a table: the class groups of one scenario after its last step.

A group is a range of places in the order of learning (``1-15``, ``20``), ``all``, or one class by
its name. Names are a person's own, ``3`` and ``all`` among them, so that a group knows its kind.
ADE20K comes in several class orders: a block then holds all of them, and a figure is the mean over
the orders, seed by seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nacre.evaluation.confusion import mean_of
from nacre.labels.space import BACKGROUND
from nacre.report.results.aggregate import Row, ScenarioResults, seed_of
from nacre.report.results.deviations import deviations
from nacre.report.results.published import (
    FULL,
    Place,
    PublishedTable,
    place_of,
    published,
    published_name,
)

ALL = "all"

ORDERS = ("a", "b")
"""The class orders of ADE20K that the paper averages."""

DEVIATES = "*"
"""Stands after the name of a row that is not the method as the paper has it."""

MOST_GROUPS = 7
"""Steps that have a column each; of more, the later ones share one."""


Seed = tuple[Any, ...]


@dataclass(frozen=True)
class ClassGroup:
    """The classes of a column.

    Attributes:
        title: What stands above it.
        first: The place of its first class in the order of learning, from 1; None for all classes.
        last: The place of its last class.
        is_class: Whether it is one class under its own name, and no mean.
    """

    title: str
    first: int | None = None
    last: int | None = None
    is_class: bool = False

    def names(self, results: ScenarioResults) -> tuple[str, ...]:
        """Return the names of its classes."""
        if self.first is None:
            return results.classes
        return results.classes[self.first - 1 : self.last]


def places(title: str) -> ClassGroup:
    """Return the group of ``1-15``, ``20`` or ``all``."""
    if title == ALL:
        return ClassGroup(ALL)
    first, _, last = title.partition("-")
    return ClassGroup(title, int(first), int(last or first))


@dataclass(frozen=True)
class NamedRow:
    """A row under the name that a table gives it.

    Attributes:
        row: The runs.
        method: What the paper calls the method.
        deviations: Where it differs from the paper, if it stands beside the paper's row.
    """

    row: Row
    method: str
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Neighbouring columns: a scenario in one or more class orders.

    Attributes:
        heading: What stands above.
        orders: The scenario, once per class order; none where only the paper's figures are shown.
        groups: The columns.
        place: Where its figures stand in the paper, if they do.
        ablation: Whether rows are named as in the paper's ablation.
        beside: The methods whose published rows are shown too.
    """

    heading: str
    orders: tuple[ScenarioResults, ...]
    groups: tuple[ClassGroup, ...]
    place: Place | None
    ablation: bool = False
    beside: frozenset[str] = frozenset()

    @cached_property
    def rows(self) -> tuple[dict[str, NamedRow], ...]:
        """The rows of each order by what the table calls them."""
        return tuple(self._rows_by_name(results) for results in self.orders)

    @property
    def names(self) -> dict[str, str]:
        """What the paper calls the method of each row, by the row's name."""
        return {name: named.method for rows in self.rows for name, named in rows.items()}

    def members(self, name: str) -> list[NamedRow]:
        """Return the rows of a name, one an order."""
        return [rows[name] for rows in self.rows if name in rows]

    def about(self, group: ClassGroup) -> str:
        """Return the classes of a column, where they are known."""
        return ", ".join(group.names(self.orders[0])) if self.orders else ""

    def _rows_by_name(self, results: ScenarioResults) -> dict[str, NamedRow]:
        """Return rows by what the paper calls them; by their own names where that is not unique."""
        found: dict[str, list[NamedRow]] = {}
        for row in results.rows:
            named = self._named(row)
            mark = DEVIATES if named.deviations else ""
            found.setdefault(named.method + mark, []).append(named)
        return {
            (name if len(rows) == 1 else one.row.name + (DEVIATES if one.deviations else "")): one
            for name, rows in found.items()
            for one in rows
        }

    def _named(self, row: Row) -> NamedRow:
        name = published_name(row)
        name = FULL if self.ablation and name == "MiB" else name
        return NamedRow(row, name, deviations(row.runs[0]) if name in self.beside else ())

    def values(self, name: str, group: ClassGroup, background: bool) -> tuple[float, ...]:
        """Return a figure for every seed, averaged over the class orders that were run."""
        found = []
        for results, rows in zip(self.orders, self.rows, strict=True):
            # One class alone is a class, and no mean for the background to be in.
            extra = (BACKGROUND,) if background and not group.is_class else ()
            classes = (*extra, *group.names(results))
            if name in rows and (seeds := _by_seed(rows[name].row, classes)):
                found.append(seeds)
        return _over_orders(found)


def own_block(results: ScenarioResults, beside: frozenset[str] = frozenset()) -> Block:
    """Return a scenario's block: with the paper's groups if it has them, else one per step."""
    place = _place(results)
    for layout in (published()["1"], published()["2"]):
        if place in layout.groups:
            groups = tuple(map(places, layout.groups[place]))
            return Block(results.scenario, (results,), groups, place, beside=beside)
    return Block(results.scenario, (results,), _groups(results), place, beside=beside)


def class_block(results: ScenarioResults, beside: frozenset[str] = frozenset()) -> Block:
    """Return a block with a column for every class, then the groups."""
    others = own_block(results).groups
    titles = {group.title for group in others}
    classes = [
        # A class that is called as a column of places is must not be taken for it.
        ClassGroup(f"“{name}”" if name in titles else name, place, place, is_class=True)
        for place, name in enumerate(results.classes, start=1)
    ]
    groups = (*classes, *others)
    return Block(results.scenario, (results,), groups, _place(results), beside=beside)


def published_blocks(
    results: Sequence[ScenarioResults],
    layout: PublishedTable,
    beside: frozenset[str] = frozenset(),
) -> Iterator[Block]:
    """Yield the blocks of one of the paper's tables for which there are runs; all without runs."""
    ablation = FULL in layout.methods
    found = [(place_of(one), one) for one in results]
    for place in layout.places:
        orders = tuple(one for key, one in found if key and key[0] == place and key[1] in ORDERS)
        if orders or not results:
            heading = f"{place.task} {place.setup}"
            groups = tuple(map(_published_group, layout.groups[place]))
            yield Block(heading, orders, groups, place, ablation, beside)


def _published_group(title: str) -> ClassGroup:
    """Return the group of a published column: places in the order of learning, or one class."""
    return places(title) if title == ALL or title[0].isdigit() else ClassGroup(title, is_class=True)


def _place(results: ScenarioResults) -> Place | None:
    found = place_of(results)
    return found[0] if found else None


def _groups(results: ScenarioResults) -> tuple[ClassGroup, ...]:
    sizes = [len(names) for names in results.groups]
    if len(sizes) > MOST_GROUPS:
        sizes = [sizes[0], sum(sizes[1:])]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    spans = [(end - size + 1, end) for end, size in zip(ends, sizes, strict=True)]
    named = [f"{a}-{b}" if a < b else f"{a}" for a, b in spans]
    return tuple(map(places, (*named, ALL) if len(named) > 1 else (ALL,)))


def _by_seed(row: Row, names: Sequence[str]) -> dict[Seed, float]:
    found = {seed_of(run): mean_of([run.last.iou.get(name) for name in names]) for run in row.runs}
    return {seed: value for seed, value in found.items() if value is not None}


def _over_orders(orders: Sequence[dict[Seed, float]]) -> tuple[float, ...]:
    """Return the mean over the orders for each seed; without common seeds, one mean of all."""
    if not orders:
        return ()
    seeds = [seed for seed in orders[0] if all(seed in found for found in orders)]
    if seeds:
        return tuple(sum(found[seed] for found in orders) / len(orders) for seed in seeds)
    mean = mean_of([mean_of(list(found.values())) for found in orders])
    return () if mean is None else (mean,)

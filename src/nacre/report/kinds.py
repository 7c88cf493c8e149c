"""The kinds of tables: after every step, after the last, by class, and the paper's own.

A table consists of blocks of neighboring columns: the class groups of one scenario after its last
step. A group is a range of places in the order of learning (``1-15``, ``20``), ``all``, or one
class by its name. A user may name a class ``3`` or ``all``, so a group stores whether it is a
class. ADE20K has several class orders: a block then contains all of them, and a number is the mean
over the orders, seed by seed.

With the paper's results, each row of ours is followed by the paper's row and the difference.
Methods that were not run here have only the paper's row; without any runs the table is the paper's.
A row of ours that was not run as in the paper has a star, and the caption lists the differences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nacre.errors import NacreError, unknown_name
from nacre.evaluation.metrics import mean_of
from nacre.labels.space import BACKGROUND
from nacre.report.published import (
    FULL,
    Place,
    PublishedTable,
    deviations,
    later,
    later_sources,
    place_of,
    published,
    published_name,
)
from nacre.report.results import Row, ScenarioResults, seed_of
from nacre.report.tables import (
    Cell,
    Column,
    ResultTable,
    TableRow,
    caption_of,
    mark_best,
    steps_table,
)

KINDS = {
    "steps": "old, new and all classes after every step, a table per scenario",
    "last": "groups of classes after the last step, all scenarios side by side",
    "classes": "every class after the last step, a table per scenario",
    "voc": "the paper's Table 1: Pascal VOC",
    "ade20k": "the paper's Table 2: ADE20K, the mean of its two class orders",
    "ablation": "the paper's Table 3: what each part of MiB adds",
    "lwf-mc": "the supplement's variants of LwF-MC",
    "later": "methods since 2020: background counted in old and all, as their papers do",
}
NUMBERS = {"voc": ("1",), "ade20k": ("2",), "ablation": ("3",), "lwf-mc": ("S1", "S2")}
"""The paper's tables that a kind is made of."""
TITLES = {
    "1": "Pascal VOC 2012, after the last step",
    "2": "ADE20K, after the last step",
    "3": "What each part adds, Pascal VOC 2012",
    "S1": "Variants of LwF-MC, Pascal VOC 2012",
    "S2": "Variants of LwF-MC, ADE20K",
    "voc": "Pascal VOC 2012, methods since 2020",
    "ade20k": "ADE20K, methods since 2020",
}
ALL = "all"
ORDERS = ("a", "b")
"""The class orders of ADE20K that the paper averages."""
DEVIATES = "*"
"""Suffix of the name of a row that is not the method as the paper has it."""
MAX_GROUPS = 7
"""Steps with a column each; of more, the later ones share one."""


@dataclass(frozen=True)
class ClassGroup:
    """The classes of a column, by the first and the last place in the order of learning, from 1.

    All classes have no places. A single class under its own name (`is_class`) is not a mean.
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
    """Return the group of ``1-15``, ``20``, ``all`` or the name of a class of VOC."""
    if title == ALL:
        return ClassGroup(ALL)
    if not title[0].isdigit():
        return ClassGroup(title, is_class=True)
    first, _, last = title.partition("-")
    return ClassGroup(title, int(first), int(last or first))


@dataclass(frozen=True)
class NamedRow:
    """A row with the paper's name of its method and its deviations from the paper's row."""

    row: Row
    method: str
    deviations: tuple[str, ...] = ()

    @property
    def own_name(self) -> str:
        """The name of the row itself, with a star if it deviates."""
        return self.row.name + (DEVIATES if self.deviations else "")


@dataclass(frozen=True)
class Block:
    """Neighboring columns: a scenario in one or more class orders.

    Attributes:
        heading: The heading above them.
        orders: The scenario, once per class order; none if only the paper's results are shown.
        groups: The columns.
        place: The key of its published results, if there are any.
        is_ablation: True if rows are named as in the paper's ablation.
        beside: The methods whose published rows are in the table, too.
    """

    heading: str
    orders: tuple[ScenarioResults, ...]
    groups: tuple[ClassGroup, ...]
    place: Place | None
    is_ablation: bool = False
    beside: frozenset[str] = frozenset()

    @cached_property
    def rows(self) -> tuple[dict[str, NamedRow], ...]:
        """The rows of each order by their names in the table."""
        return tuple(self._rows_by_name(results) for results in self.orders)

    @property
    def names(self) -> dict[str, str]:
        """The paper's name of each row's method, by the row's name."""
        return {name: named.method for rows in self.rows for name, named in rows.items()}

    def members(self, name: str) -> list[NamedRow]:
        """Return the rows of a name, one per order."""
        return [rows[name] for rows in self.rows if name in rows]

    def about(self, group: ClassGroup) -> str:
        """Return the classes of a column, if they are known."""
        return ", ".join(group.names(self.orders[0])) if self.orders else ""

    def _rows_by_name(self, results: ScenarioResults) -> dict[str, NamedRow]:
        """Return rows by the paper's names, or by their own names if those are not unique."""
        by_name: dict[str, list[NamedRow]] = {}
        for row in results.rows:
            method = published_name(row)
            method = FULL if self.is_ablation and method == "MiB" else method
            differences = deviations(row.runs[0]) if method in self.beside else ()
            name = method + (DEVIATES if differences else "")
            by_name.setdefault(name, []).append(NamedRow(row, method, differences))
        return {
            (name if len(rows) == 1 else named.own_name): named
            for name, rows in by_name.items()
            for named in rows
        }

    def values(self, name: str, group: ClassGroup, background: bool) -> tuple[float, ...]:
        """Return a number per seed, averaged over the class orders that were run."""
        by_order = []
        for results, rows in zip(self.orders, self.rows, strict=True):
            # A single class is not a mean that could include the background.
            extra = (BACKGROUND,) if background and not group.is_class else ()
            classes = (*extra, *group.names(results))
            if name in rows and (seeds := _by_seed(rows[name].row, classes)):
                by_order.append(seeds)
        return _over_orders(by_order)


def _by_seed(row: Row, names: Sequence[str]) -> dict[tuple[Any, ...], float]:
    means = {seed_of(run): mean_of([run.last.iou.get(name) for name in names]) for run in row.runs}
    return {seed: value for seed, value in means.items() if value is not None}


def _over_orders(orders: Sequence[dict[tuple[Any, ...], float]]) -> tuple[float, ...]:
    """Return the mean over the orders for each seed, or one mean of all without common seeds."""
    if not orders:
        return ()
    seeds = [seed for seed in orders[0] if all(seed in values for values in orders)]
    if seeds:
        return tuple(sum(values[seed] for values in orders) / len(orders) for seed in seeds)
    mean = mean_of([mean_of(list(values.values())) for values in orders])
    return () if mean is None else (mean,)


def own_block(results: ScenarioResults) -> Block:
    """Return a scenario's block with the paper's groups, or with a group per step."""
    key = place_of(results)
    place = key[0] if key else None
    groups = _groups(results)
    for layout in (published()["1"], published()["2"]):
        if place in layout.groups:
            groups = tuple(map(places, layout.groups[place]))
    return Block(results.scenario, (results,), groups, place)


def class_block(results: ScenarioResults) -> Block:
    """Return a block with a column for every class, then the groups."""
    block = own_block(results)
    titles = {group.title for group in block.groups}
    classes = [
        # A class with the title of a group must not be taken for it.
        ClassGroup(f"“{name}”" if name in titles else name, place, place, is_class=True)
        for place, name in enumerate(results.classes, start=1)
    ]
    return replace(block, groups=(*classes, *block.groups))


def published_blocks(results: Sequence[ScenarioResults], layout: PublishedTable) -> Iterator[Block]:
    """Yield the blocks of a published table that have runs, or all of them without any runs."""
    keys = [(place_of(scenario), scenario) for scenario in results]
    for place in layout.places:
        orders = tuple(
            scenario for key, scenario in keys if key and key[0] == place and key[1] in ORDERS
        )
        if orders or not results:
            groups = tuple(map(places, layout.groups[place]))
            heading = f"{place.task} {place.setup}"
            yield Block(heading, orders, groups, place, FULL in layout.methods)


def _groups(results: ScenarioResults) -> tuple[ClassGroup, ...]:
    sizes = [len(names) for names in results.groups]
    if len(sizes) > MAX_GROUPS:
        sizes = [sizes[0], sum(sizes[1:])]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    spans = [(end - size + 1, end) for end, size in zip(ends, sizes, strict=True)]
    named = [f"{a}-{b}" if a < b else f"{a}" for a, b in spans]
    return tuple(map(places, (*named, ALL) if len(named) > 1 else (ALL,)))


@dataclass(frozen=True)
class _Plan:
    """Specification of a table.

    Attributes:
        order: The methods that come first, in this order.
        is_closed: True if no other methods are shown.
        paper: The published results to show, if any.
        background: Include the background in every mean.
        is_later: True for later papers' results, with the background in all means but those of
            new classes.
    """

    title: str
    blocks: tuple[Block, ...]
    order: tuple[str, ...] = ()
    is_closed: bool = False
    paper: tuple[PublishedTable, ...] = ()
    background: bool = False
    is_later: bool = False

    @property
    def columns(self) -> list[tuple[Block, ClassGroup]]:
        """The block and the classes of each column."""
        return [(block, group) for block in self.blocks for group in block.groups]

    def counts_background(self, group: ClassGroup) -> bool:
        """Return True if the mean of a group includes the background."""
        return self.background and not (self.is_later and group.first not in (None, 1))


def make_tables(
    results: Sequence[ScenarioResults],
    kind: str = "steps",
    *,
    paper: bool = False,
    background: bool = False,
) -> list[ResultTable]:
    """Return the tables of a kind.

    Args:
        results: The finished runs by scenario.
        kind: One of `KINDS`.
        paper: Add the paper's results.
        background: Include the background in every mean.
    """
    if kind not in KINDS:
        raise unknown_name("kind of table", kind, KINDS)
    if paper and background and kind != "later":
        raise NacreError(
            "--paper and --background cannot be combined: the paper excludes the background"
        )
    if paper and kind == "steps":
        others = ", ".join(name for name in KINDS if name != "steps")
        raise NacreError(
            f"the paper has no results after every step; choose another kind of table: {others}"
        )
    if not results and not paper:
        raise NacreError(f"no runs for the table {kind!r}: name run folders, or show the paper's")
    if kind == "steps":
        return [steps_table(scenario, background=background) for scenario in results]
    if kind in ("last", "classes"):
        return _own_tables(results, kind, paper, background)
    layouts = list(later().values()) if kind == "later" else [published()[n] for n in NUMBERS[kind]]
    return _published_tables(results, kind, layouts, paper, background)


def _own_tables(
    results: Sequence[ScenarioResults], kind: str, paper: bool, background: bool
) -> list[ResultTable]:
    """Return a table of all scenarios after the last step, or a table by class per scenario."""
    numbers = ("1", "2") if kind == "last" else ("S per class",)
    layouts = tuple(published()[number] for number in numbers) if paper else ()
    if results:
        blocks = [own_block(one) if kind == "last" else class_block(one) for one in results]
    else:
        blocks = [block for layout in layouts for block in published_blocks([], layout)]
    if kind == "last":
        tables = [("After the last step", blocks)]
    else:
        prefix = "" if results else "Pascal VOC 2012, "
        tables = [(f"{prefix}{block.heading}, by class", [block]) for block in blocks]
    return [
        _build(_Plan(title, tuple(blocks), paper=layouts, background=background))
        for title, blocks in tables
    ]


def _published_tables(
    results: Sequence[ScenarioResults],
    kind: str,
    layouts: Sequence[PublishedTable],
    paper: bool,
    background: bool,
) -> list[ResultTable]:
    is_later = kind == "later"
    tables = []
    for layout in layouts:
        shown = (layout,) if paper else ()
        blocks = tuple(published_blocks(results, layout))
        if blocks:
            plan = _Plan(
                TITLES[layout.name],
                blocks,
                layout.methods,
                is_closed=kind in ("ablation", "lwf-mc"),
                paper=shown,
                background=background or is_later,
                is_later=is_later,
            )
            tables.append(_build(plan))
    if not tables:
        names = [place.name for layout in layouts for place in layout.places]
        needed = ", ".join(dict.fromkeys(names))
        raise NacreError(f"no run fits the table {kind!r}; it needs runs of the scenarios {needed}")
    return tables


def _build(plan: _Plan) -> ResultTable:
    """Return the table of a specification."""
    beside = frozenset(name for layout in plan.paper for name in layout.methods)
    plan = replace(plan, blocks=tuple(replace(block, beside=beside) for block in plan.blocks))
    columns = tuple(
        Column(block.heading, group.title, block.about(group)) for block, group in plan.columns
    )
    rows = [row for method, names in _names(plan).items() for row in _rows(plan, method, names)]
    rows.sort(key=lambda row: row.is_bound)
    members = [named.row for block in plan.blocks for rows in block.rows for named in rows.values()]
    caption = " ".join([caption_of(members, plan.background), *_notes(plan)])
    return ResultTable(plan.title, caption, columns, tuple(mark_best(rows)))


def _names(plan: _Plan) -> dict[str, list[str]]:
    """Return the names of our rows by method, the methods in the order of the table."""
    ours: dict[str, dict[str, None]] = {}
    for block in plan.blocks:
        for name, method in block.names.items():
            ours.setdefault(method, {})[name] = None
    theirs = dict.fromkeys(name for table in plan.paper for name in table.methods)
    known = [name for name in plan.order or theirs if name in ours or name in theirs]
    others = [] if plan.is_closed else [name for name in ours if name not in known]
    return {method: sorted(ours.get(method, {})) for method in (*known, *others)}


def _rows(plan: _Plan, method: str, names: Sequence[str]) -> list[TableRow]:
    """Return our rows of a method, the paper's row, and the differences; leave out empty ones."""
    theirs = tuple(Cell(_theirs(plan, block, method, group)) for block, group in plan.columns)
    mark = "published" if plan.is_later else "paper's"
    ours, differences, is_bound = [], [], method == "Joint"
    for name in names:
        members = [named.row for block in plan.blocks for named in block.members(name)]
        is_bound = is_bound or any(row.is_joint for row in members)
        cells = tuple(
            Cell(block.values(name, group, plan.counts_background(group)))
            for block, group in plan.columns
        )
        gaps = tuple(map(_gap, cells, theirs))
        ours.append(TableRow(name, cells, max(len(row.runs) for row in members)))
        differences.append(TableRow(f"{name}, ours − {mark}", gaps, 0, source="difference"))
    rows = [*ours, TableRow(f"{method}, {mark}", theirs, 0, source="paper"), *differences]
    filled = [row for row in rows if any(cell.values for cell in row.cells)]
    return [replace(row, is_bound=is_bound) for row in filled]


def _theirs(plan: _Plan, block: Block, name: str, group: ClassGroup) -> tuple[float, ...]:
    for table in plan.paper:
        if block.place is not None and (block.place, name, group.title) in table.figures:
            return (table.figures[block.place, name, group.title],)
    return ()


def _gap(ours: Cell, theirs: Cell) -> Cell:
    if ours.mean is None or theirs.mean is None:
        return Cell(())
    return Cell((ours.mean - theirs.mean,), signed=True)


def _notes(plan: _Plan) -> list[str]:
    notes = ["After the last step; classes are numbered in the order of learning."]
    notes += [note for block in plan.blocks for results in block.orders for note in results.notes]
    if any(len(block.orders) > 1 for block in plan.blocks):
        notes.append("Mean of the class orders a and b.")
    for block in plan.blocks:
        alone = [name for name in block.names if len(block.members(name)) == 1]
        is_ade20k = block.place is not None and block.place.data == "ade20k"
        if len(block.orders) > 1 and alone:
            notes.append(f"One order alone in {block.heading}: {', '.join(alone)}.")
        elif plan.paper and not plan.is_later and is_ade20k and alone:
            notes.append(f"{block.heading} is one class order; the paper's is the mean of two.")
    return [*notes, *_published_notes(plan), *_deviation_notes(plan)]


def _published_notes(plan: _Plan) -> Iterator[str]:
    """Yield notes about published results."""
    if plan.is_later:
        yield "The background is in the means of old and of all classes."
    if plan.paper and plan.is_later:
        yield "Rows named “published” are copied from papers and repositories, not run here."
        yield "; ".join(later_sources(plan.paper[0].name)) + "."
        yield "No preset has the whole protocol of a later paper."
    elif plan.paper:
        yield "Rows named “paper's” are copied from the paper, not run here."
        alone = [block.place for block in plan.blocks if not block.orders and block.place]
        if any(place.data == "ade20k" for place in alone):
            yield "The paper's figures on ADE20K are means of two class orders."


def _deviation_notes(plan: _Plan) -> Iterator[str]:
    """Yield the deviations of the marked rows from the paper, those common to all first."""
    where: dict[str, dict[str, None]] = {}
    marked: dict[str, None] = {}
    for block in plan.blocks:
        for name in block.names:
            row = f"{name} ({block.heading})" if len(plan.blocks) > 1 else name
            for member in block.members(name):
                for deviation in member.deviations:
                    marked[row] = None
                    where.setdefault(deviation, {})[row] = None
    if not marked:
        return
    yield f"Rows with {DEVIATES} are not run as the paper: they differ from the preset `paper`."
    groups: dict[tuple[str, ...], list[str]] = {}
    for deviation, rows in where.items():
        groups.setdefault(tuple(rows), []).append(deviation)
    for names, differences in sorted(groups.items(), key=lambda group: -len(group[0])):
        who = f"All {DEVIATES}" if len(names) == len(marked) else ", ".join(names)
        yield f"{who}: {'; '.join(differences)}."

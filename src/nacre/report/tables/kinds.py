"""The kinds of tables: after every step, after the last, by class, and the paper's own.

With the paper's figures, each of our rows is followed by the paper's row and the difference,
always named as such. Methods of the paper that were not run here have the paper's row alone;
without any runs the tables are the paper's. A row of ours that is not run as the paper has a star
beside the paper's, and the caption says where it differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nacre.errors import NacreError, unknown_name
from nacre.report.results.aggregate import ScenarioResults
from nacre.report.results.published import PublishedTable, later, later_sources, published
from nacre.report.tables.cells import (
    Cell,
    Column,
    ResultTable,
    TableRow,
    caption_of,
    mark_best,
    steps_table,
)
from nacre.report.tables.columns import (
    DEVIATES,
    Block,
    ClassGroup,
    class_block,
    own_block,
    published_blocks,
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
}


LATER_TITLES = {"voc": "Pascal VOC 2012", "ade20k": "ADE20K"}


@dataclass(frozen=True)
class Plan:
    """What a table is made of.

    Attributes:
        title: Its title.
        blocks: Its columns.
        order: The methods that come first, in this order.
        closed: Whether no other methods are shown.
        paper: Where the paper's figures are looked up, if they are wanted.
        background: Whether the background counts as one class more in every mean.
        is_later: Whether the figures are later papers', with the background in all means but
            those of new classes.
    """

    title: str
    blocks: tuple[Block, ...]
    order: tuple[str, ...] = ()
    closed: bool = False
    paper: tuple[PublishedTable, ...] = ()
    background: bool = False
    is_later: bool = False

    def counts_background(self, group: ClassGroup) -> bool:
        """Whether the background is in the mean of a group of classes."""
        is_new = group.first not in (None, 1)
        return self.background and not (self.is_later and is_new)


def make_tables(
    results: Sequence[ScenarioResults],
    kind: str = "steps",
    *,
    paper: bool = False,
    background: bool = False,
) -> list[ResultTable]:
    """Return the tables of a kind.

    Args:
        results: What runs show, by scenario.
        kind: One of `KINDS`.
        paper: Whether to set the paper's figures beside ours.
        background: Whether the background counts as one class more in every mean.
    """
    _check(kind, paper, background)
    if not results and not paper:
        raise NacreError(f"no runs for the table {kind!r}: name run folders, or show the paper's")
    if kind == "steps":
        return [steps_table(one, background=background) for one in results]
    if kind == "last":
        return [_last_table(results, paper, background)]
    if kind == "classes":
        return _class_tables(results, paper, background)
    if kind == "later":
        return _later_tables(results, paper)
    return _published_tables(results, kind, paper, background)


def _last_table(results: Sequence[ScenarioResults], paper: bool, background: bool) -> ResultTable:
    figures = _figures(("1", "2"), paper)
    beside = _beside(figures)
    blocks = [own_block(one, beside) for one in results]
    if not results:
        blocks = [block for layout in figures for block in published_blocks([], layout)]
    return build(Plan("After the last step", tuple(blocks), (), False, figures, background))


def _class_tables(
    results: Sequence[ScenarioResults], paper: bool, background: bool
) -> list[ResultTable]:
    figures = _figures(("S per class",), paper)
    beside = _beside(figures)
    blocks = [(one.scenario, class_block(one, beside)) for one in results]
    if not results:
        alone = [block for layout in figures for block in published_blocks([], layout)]
        blocks = [(f"Pascal VOC 2012, {block.heading}", block) for block in alone]
    return [
        build(Plan(f"{name}, by class", (block,), (), False, figures, background))
        for name, block in blocks
    ]


def build(plan: Plan) -> ResultTable:
    """Make a table."""
    columns = tuple(
        Column(block.heading, group.title, block.about(group))
        for block in plan.blocks
        for group in block.groups
    )
    rows = [row for method, names in _names(plan).items() for row in _rows(plan, method, names)]
    rows = [row for row in rows if not row.is_bound] + [row for row in rows if row.is_bound]
    members = [one.row for block in plan.blocks for rows in block.rows for one in rows.values()]
    caption = " ".join([caption_of(members, plan.background), *_notes(plan)])
    return ResultTable(plan.title, caption, columns, tuple(mark_best(rows)))


def _check(kind: str, paper: bool, background: bool) -> None:
    if kind not in KINDS:
        raise unknown_name("kind of table", kind, KINDS)
    if paper and background and kind != "later":
        raise NacreError("the paper's figures leave the background out: not both can be shown")
    if paper and kind == "steps":
        others = ", ".join(name for name in KINDS if name != "steps")
        raise NacreError(f"the paper has no figures after every step; tables with some: {others}")


def _figures(numbers: Sequence[str], paper: bool) -> tuple[PublishedTable, ...]:
    return tuple(published()[number] for number in numbers) if paper else ()


def _beside(figures: Sequence[PublishedTable]) -> frozenset[str]:
    """Return the methods whose published rows a table shows."""
    return frozenset(name for table in figures for name in table.methods)


def _published_tables(
    results: Sequence[ScenarioResults], kind: str, paper: bool, background: bool
) -> list[ResultTable]:
    layouts = [published()[number] for number in NUMBERS[kind]]
    tables = []
    for layout in layouts:
        closed = kind in ("ablation", "lwf-mc")
        figures = (layout,) if paper else ()
        blocks = tuple(published_blocks(results, layout, _beside(figures)))
        if blocks:
            title = TITLES[layout.name]
            tables.append(build(Plan(title, blocks, layout.methods, closed, figures, background)))
    if not tables:
        places = dict.fromkeys(place for layout in layouts for place in layout.places)
        needed = ", ".join(f"{one.data}/{one.task}/{one.setup}" for one in places)
        raise NacreError(f"no run fits the table {kind!r}; it is made of the scenarios {needed}")
    return tables


def _later_tables(results: Sequence[ScenarioResults], paper: bool) -> list[ResultTable]:
    tables = []
    for data, layout in later().items():
        figures = (layout,) if paper else ()
        blocks = tuple(published_blocks(results, layout, _beside(figures)))
        if blocks:
            title = f"{LATER_TITLES[data]}, methods since 2020"
            plan = Plan(title, blocks, layout.methods, False, figures, True, is_later=True)
            tables.append(build(plan))
    if not tables:
        places = dict.fromkeys(place for layout in later().values() for place in layout.places)
        needed = ", ".join(f"{one.data}/{one.task}/{one.setup}" for one in places)
        raise NacreError(f"no run fits the table 'later'; it is made of the scenarios {needed}")
    return tables


def _names(plan: Plan) -> dict[str, list[str]]:
    """Return the names of our rows by method, the methods in the order of the table."""
    ours: dict[str, dict[str, None]] = {}
    for block in plan.blocks:
        for name, method in block.names.items():
            ours.setdefault(method, {})[name] = None
    theirs = dict.fromkeys(name for table in plan.paper for name in table.methods)
    order = plan.order or tuple(theirs)
    known = [name for name in order if name in ours or name in theirs]
    others = [] if plan.closed else [name for name in ours if name not in known]
    return {method: sorted(ours.get(method, {})) for method in (*known, *others)}


def _rows(plan: Plan, method: str, names: Sequence[str]) -> list[TableRow]:
    """Return our rows of a method, the paper's, and the differences: what there is of them."""
    places = [(block, group) for block in plan.blocks for group in block.groups]
    theirs = tuple(Cell(_theirs(plan, block, method, group)) for block, group in places)
    mark = "published" if plan.is_later else "paper's"
    ours, differences, is_bound = [], [], method == "Joint"
    for name in names:
        members = [one.row for block in plan.blocks for one in block.members(name)]
        is_bound = is_bound or any(row.merged for row in members)
        cells = tuple(
            Cell(block.values(name, group, plan.counts_background(group)))
            for block, group in places
        )
        gaps = tuple(_gap(one, other) for one, other in zip(cells, theirs, strict=True))
        ours.append(TableRow(name, cells, max(len(row.runs) for row in members)))
        differences.append(TableRow(f"{name}, ours − {mark}", gaps, 0, source="difference"))
    rows = [*ours, TableRow(f"{method}, {mark}", theirs, 0, source="paper"), *differences]
    there = [row for row in rows if any(cell.values for cell in row.cells)]
    return [replace(row, is_bound=is_bound) for row in there]


def _theirs(plan: Plan, block: Block, name: str, group: ClassGroup) -> tuple[float, ...]:
    for table in plan.paper:
        if block.place is not None and (block.place, name, group.title) in table.figures:
            return (table.figures[block.place, name, group.title],)
    return ()


def _gap(ours: Cell, theirs: Cell) -> Cell:
    if ours.mean is None or theirs.mean is None:
        return Cell(())
    return Cell((ours.mean - theirs.mean,), signed=True)


def _notes(plan: Plan) -> list[str]:
    notes = ["After the last step; classes are numbered in the order of learning."]
    notes += [note for block in plan.blocks for one in block.orders for note in one.notes]
    if any(len(block.orders) > 1 for block in plan.blocks):
        notes.append("Mean of the class orders a and b.")
    for block in plan.blocks:
        alone = [name for name in block.names if len(block.members(name)) == 1]
        if len(block.orders) > 1 and alone:
            notes.append(f"One order alone in {block.heading}: {', '.join(alone)}.")
        elif _is_one_of_two_orders(plan, block) and alone:
            notes.append(f"{block.heading} is one class order; the paper's is the mean of two.")
    return [*notes, *_published_notes(plan), *_deviation_notes(plan)]


def _deviation_notes(plan: Plan) -> Iterator[str]:
    """Say where the rows that are marked differ from the paper, what is common to all first."""
    where: dict[str, dict[str, None]] = {}
    marked: dict[str, None] = {}
    for block in plan.blocks:
        for name in block.names:
            row = f"{name} ({block.heading})" if len(plan.blocks) > 1 else name
            found = [one for member in block.members(name) for one in member.deviations]
            marked |= dict.fromkeys([row] if found else [])
            for one in found:
                where.setdefault(one, {})[row] = None
    if not marked:
        return
    yield f"Rows with {DEVIATES} are not run as the paper: they differ from the preset `paper`."
    groups: dict[tuple[str, ...], list[str]] = {}
    for one, rows in where.items():
        groups.setdefault(tuple(rows), []).append(one)
    for names, differences in sorted(groups.items(), key=lambda group: -len(group[0])):
        who = f"All {DEVIATES}" if len(names) == len(marked) else ", ".join(names)
        yield f"{who}: {'; '.join(differences)}."


def _is_one_of_two_orders(plan: Plan, block: Block) -> bool:
    """Whether the paper's figure beside a block is of two orders; later papers have one."""
    is_ade20k = block.place is not None and block.place.data == "ade20k"
    return bool(plan.paper) and not plan.is_later and is_ade20k


def _published_notes(plan: Plan) -> Iterator[str]:
    """Say where figures are from that were not measured here, and what they count."""
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

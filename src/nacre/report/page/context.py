"""What the page's template is given for a scenario: figures, charts, pictures and words."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nacre.errors import NacreError
from nacre.report.charts.charts import key
from nacre.report.charts.figures import (
    MOST_CLASSES,
    forgetting_chart,
    forgetting_is_cut,
    loss_chart,
    step_curves,
    styles,
)
from nacre.report.pictures.background_shift import Shift, background_shift
from nacre.report.pictures.grids import (
    has_untested,
    legend_of,
    sheet_grid,
    shift_grid,
)
from nacre.report.pictures.predict import open_data
from nacre.report.pictures.sheet import Sheet, comparison_sheet
from nacre.report.results.aggregate import SEEDS, Row, ScenarioResults, shown_name
from nacre.report.results.runs import RunResult
from nacre.report.tables.cells import ResultTable, steps_table
from nacre.report.tables.kinds import make_tables
from nacre.scenarios.plan import StepPlan, make_plan
from nacre.training.events import StepLearned, Trained

MOST_STEPS = 4
"""Steps whose columns fit side by side."""

COMPACT = 60
"""Classes from which on the heat map has no room for numbers."""


@dataclass(frozen=True)
class Section:
    """A scenario of the page.

    Attributes:
        results: What its runs show.
        paper: Whether the paper's figures are set beside them.
        plan: What each step saw, where the data is here.
        shifts: A training image of each step, where the data is here.
        sheet: Pictures, where the data and the networks are here.
        missing: Why something of this is not there.
    """

    results: ScenarioResults
    paper: bool = False
    plan: tuple[StepPlan, ...] = ()
    shifts: tuple[Shift, ...] = ()
    sheet: Sheet | None = None
    missing: str = ""


def make_section(results: ScenarioResults, pictures: int, paper: bool) -> Section:
    """Look at the data and the networks of a scenario, as far as they are here."""
    section = Section(results, paper)
    # A report can be made where the data or the models are not; the page says what is missing.
    try:
        data = open_data(results.rows)
        plan = tuple(make_plan(data.scenario, data.train_index, data.image_lists))
        section = Section(results, paper, plan)
        if not pictures:
            return section
        shifts = tuple(background_shift(data)) if results.final else ()
        section = Section(results, paper, plan, shifts)
        sheet = comparison_sheet(results, data, pictures)
    except NacreError as error:
        return Section(
            results, paper, section.plan, section.shifts, missing=str(error).splitlines()[0]
        )
    return Section(results, paper, plan, shifts, sheet)


def section_context(section: Section, i: int, side: int) -> dict[str, Any]:
    """Return what the template shows of a scenario, pictures at most ``side`` pixels wide."""
    results = section.results
    found = styles(results)
    keys = [(name, Markup(key(style)), style is None) for name, style in found.items()]
    return {
        "id": f"scenario-{i}",
        "results": results,
        "tables": _tables(results),
        "paper": _paper_table(section),
        "legend": [(name, drawing) for name, drawing, _ in keys],
        "stepwise": [(name, drawing) for name, drawing, is_bound in keys if not is_bound],
        "curves": [(name, Markup(chart)) for name, chart in step_curves(results)],
        "heat": [_heat(results, row) for row in results.rows],
        "forgetting": Markup(forgetting_chart(results)),
        "forgetting_cut": MOST_CLASSES if forgetting_is_cut(results) else 0,
        "losses": [(row.name, Markup(chart)) for row in results.rows if (chart := loss_chart(row))],
        "plan": section.plan,
        "missing": section.missing,
        "times": [_time(row) for row in results.rows],
        "differences": _differences(results),
        "sources": [_source(run) for row in results.rows for run in row.runs],
        **_pictures(section, side),
    }


def _pictures(section: Section, side: int) -> dict[str, Any]:
    sheet = section.sheet
    colors = sheet.colors if sheet else ()
    return {
        "sheet": sheet and sheet_grid(sheet, side),
        "candidates": sheet.candidates if sheet else 0,
        "class_legend": legend_of(sheet) if sheet else [],
        "untested": bool(sheet and has_untested(sheet)),
        "shifts": shift_grid(section.shifts, colors, side) if sheet and section.shifts else None,
    }


def _tables(results: ScenarioResults) -> list[tuple[str, ResultTable]]:
    """Return the tables with what they are called: the first is shown, the others can be."""
    steps = ("After every step", steps_table(results))
    counted = ("The same with the background counted", steps_table(results, background=True))
    if len(results.groups) <= MOST_STEPS:
        return [steps, counted]
    # What matters most of many steps, the last one, would be far to the right.
    (last,) = make_tables([results], "last")
    return [("", last), steps, counted]


def _paper_table(section: Section) -> ResultTable | None:
    if not section.paper:
        return None
    (table,) = make_tables([section.results], "last", paper=True)
    return table if any(row.source == "paper" for row in table.rows) else None


def _heat(results: ScenarioResults, row: Row) -> dict[str, Any]:
    """Return a row's IoU by class (down) and step (across)."""
    steps = [step for step in range(results.final + 1) if row.runs[0].after(step) is not None]
    names = [(name, step) for step, group in enumerate(results.groups) for name in group]
    return {
        "name": row.name,
        "steps": steps,
        "compact": len(names) > COMPACT,
        "classes": [
            (name, first, [row.iou(step, name) for step in steps])
            for name, first in [("background", -1), *names]
        ],
    }


def _time(row: Row) -> dict[str, Any]:
    """Return time and memory of the steps of a row's first run, where it learnt them itself."""
    run = row.runs[0]
    learned = {event.step: event for event in run.events if isinstance(event, StepLearned)}
    speeds = [e.images_per_second for e in run.events if isinstance(e, Trained)]
    at_task = [learned.get(0 if run.merged else i) if run.after(i) else None for i in _steps(run)]
    memory = [e.peak_memory_bytes for e in learned.values() if e.peak_memory_bytes]
    return {
        "name": row.name,
        "steps": [event and event.seconds for event in at_task],
        "total": sum(event.seconds for event in learned.values()),
        "speed": sum(speeds) / len(speeds) if speeds else None,
        "memory": max(memory) / 2**20 if memory else None,
        "device": run.starts[-1].get("device", "") if run.starts else "",
    }


def _steps(run: RunResult) -> range:
    return range(len(run.groups))


def _differences(results: ScenarioResults) -> list[tuple[str, list[str]]]:
    """Return the config values that are not the same in all rows."""
    configs = [row.runs[0].deciding for row in results.rows]
    names = dict.fromkeys(name for config in configs for name in config)
    skipped = {*SEEDS, "method.name"}
    found = []
    for name in names:
        values = ["" if name not in config else str(config[name]) for config in configs]
        if name not in skipped and len(set(values)) > 1:
            found.append((name, values))
    return found


def _source(run: RunResult) -> dict[str, Any]:
    return {
        "run": run,
        "name": shown_name(run.method),
        "start": run.starts[-1] if run.starts else {},
        "restarts": len(run.starts) - 1,
    }

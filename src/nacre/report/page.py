"""The report: a self-contained HTML page, and the tables as Markdown and CSV.

out/index.html   tables, charts and images
out/table.md     the table of every scenario
out/table.csv    the same numbers, one per line
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nacre.errors import NacreError
from nacre.report.charts import (
    key,
    loss_chart,
    step_curves,
    styles,
)
from nacre.report.images import (
    Sheet,
    comparison_sheet,
    open_data,
    sheet_rows,
)
from nacre.report.kinds import make_tables
from nacre.report.results import SEEDS, Row, ScenarioResults, load_results, percent, shown_name
from nacre.report.tables import ResultTable, steps_table, to_csv, to_markdown
from nacre.scenarios.scenario import StepPlan, make_plan
from nacre.training.events import StepLearned, Trained
from nacre.utils.io import save_text
from nacre.version import __version__

TEMPLATES = Path(__file__).parent / "templates"
SIDE = 256
"""Longer side of the images, at most."""
MAX_STEPS = 4
"""Steps whose columns fit side by side."""
COMPACT = 60
"""Classes from which on the heat map has no room for numbers."""


@dataclass(frozen=True)
class Section:
    """A scenario of the page.

    Attributes:
        results: Its finished runs.
        paper: Add the paper's results.
        plan: The images of each step, if the data are available.
        sheet: Predictions, if the data and the networks are available.
        missing: Why the plan or the sheet is missing.
    """

    results: ScenarioResults
    paper: bool = False
    plan: tuple[StepPlan, ...] = ()
    sheet: Sheet | None = None
    missing: str = ""


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    images: int = 8,
    paper: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the page and the tables of finished runs; return the page's path.

    Args:
        runs: Run folders, or folders that contain run folders.
        out: The folder of the page.
        title: The page's title; by default the scenarios.
        images: Number of images per scenario; 0 for none.
        paper: Add the paper's results, if it has some.
        notify: Called with a line about each folder that is left out.
    """
    sections = [make_section(results, images, paper) for results in load_results(runs, notify)]
    tables = [steps_table(section.results) for section in sections]
    named = title or ", ".join(dict.fromkeys(table.title for table in tables))
    page = out / "index.html"
    save_text(out / "table.md", "\n".join(to_markdown(table) for table in tables))
    save_text(out / "table.csv", to_csv(tables))
    contexts = [_context(section, i) for i, section in enumerate(sections)]
    save_text(page, render("page.html.j2", {"percent": percent}, title=named, sections=contexts))
    return page


def make_section(results: ScenarioResults, images: int, paper: bool) -> Section:
    """Open the data and the networks of a scenario, if they are available."""
    section = Section(results, paper)
    # Without data or models, the page is written and names what is missing.
    try:
        data = open_data(results)
        plan = tuple(make_plan(data.scenario, data.train_index, data.image_lists))
        section = replace(section, plan=plan)
        if images:
            section = replace(section, sheet=comparison_sheet(results, data, images))
    except NacreError as error:
        section = replace(section, missing=str(error).splitlines()[0])
    return section


def render(template: str, filters: dict[str, Callable[..., str]], **values: Any) -> str:
    """Fill a template, adding the style, the version and the date."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        made=datetime.now().astimezone().strftime("%d %B %Y"),
        **values,
    )


def _context(section: Section, i: int) -> dict[str, Any]:
    """Return the template's values for a scenario."""
    results, sheet = section.results, section.sheet
    return {
        "id": f"scenario-{i}",
        "results": results,
        "tables": _tables(results),
        "paper": _paper_table(section),
        "legend": [(name, Markup(key(style))) for name, style in styles(results).items()],
        "curves": [(name, Markup(chart)) for name, chart in step_curves(results)],
        "heat": [_heat(results, row) for row in results.rows],
        "losses": [(row.name, Markup(chart)) for row in results.rows if (chart := loss_chart(row))],
        "plan": section.plan,
        "missing": section.missing,
        "times": [_time(row) for row in results.rows],
        "differences": _differences(results),
        "sources": [
            {
                "run": run,
                "name": shown_name(run.method),
                "start": run.starts[-1] if run.starts else {},
                "restarts": len(run.starts) - 1,
            }
            for row in results.rows
            for run in row.runs
        ],
        "sheet": sheet,
        "tiles": sheet_rows(sheet, SIDE) if sheet else [],
    }


def _tables(results: ScenarioResults) -> list[tuple[str, ResultTable]]:
    """Return tables by name; all but the first are folded on the page."""
    steps = ("After every step", steps_table(results))
    counted = ("The same with the background counted", steps_table(results, background=True))
    if len(results.groups) <= MAX_STEPS:
        return [steps, counted]
    # With many steps, the last one matters most but would be far to the right.
    (last,) = make_tables([results], "last")
    return [("", last), steps, counted]


def _paper_table(section: Section) -> ResultTable | None:
    if not section.paper:
        return None
    (table,) = make_tables([section.results], "last", paper=True)
    return table if any(row.source == "paper" for row in table.rows) else None


def _heat(results: ScenarioResults, row: Row) -> dict[str, Any]:
    """Return the heat map of a row: IoU by class and step, and forgetting."""
    steps = [step for step in range(results.final + 1) if row.runs[0].after(step) is not None]
    names = [(name, step) for step, group in enumerate(results.groups) for name in group]
    return {
        "name": row.name,
        "steps": steps,
        "compact": len(names) > COMPACT,
        "forgets": any(row.forgetting(name) is not None for name in results.classes),
        "classes": [
            (name, first, [row.iou(step, name) for step in steps], row.forgetting(name))
            for name, first in [("background", -1), *names]
        ],
    }


def _time(row: Row) -> dict[str, Any]:
    """Return the time and memory of the steps that a row's first run learned itself."""
    run = row.runs[0]
    learned = {event.step: event for event in run.events if isinstance(event, StepLearned)}
    speeds = [event.images_per_second for event in run.events if isinstance(event, Trained)]
    steps = range(len(run.groups))
    by_step = [learned.get(0 if run.is_joint else i) if run.after(i) else None for i in steps]
    memory = [event.peak_memory_bytes for event in learned.values() if event.peak_memory_bytes]
    return {
        "name": row.name,
        "steps": [event and event.seconds for event in by_step],
        "total": sum(event.seconds for event in learned.values()),
        "speed": sum(speeds) / len(speeds) if speeds else None,
        "memory": max(memory) / 2**20 if memory else None,
        "device": run.starts[-1].get("device", "") if run.starts else "",
    }


def _differences(results: ScenarioResults) -> list[tuple[str, list[str]]]:
    """Return the config values that differ between the rows."""
    configs = [row.runs[0].deciding for row in results.rows]
    names = dict.fromkeys(name for config in configs for name in config)
    found = []
    for name in names:
        values = ["" if name not in config else str(config[name]) for config in configs]
        if name not in (*SEEDS, "method.name") and len(set(values)) > 1:
            found.append((name, values))
    return found

"""The report: one HTML page that holds everything, and the table as Markdown and CSV.

out/index.html   tables, charts and pictures; needs nothing beside it
out/table.md     the table of every scenario
out/table.csv    the same figures, one a line
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

import nacre
from nacre.classes import IGNORED
from nacre.errors import NacreError
from nacre.files import save_text
from nacre.plan import StepPlan, make_plan
from nacre.report.figures import (
    MOST_CLASSES,
    forgetting_chart,
    forgetting_is_cut,
    loss_chart,
    step_curves,
    styles,
)
from nacre.report.marks import key
from nacre.report.pictures import Sheet, comparison_sheet, data_uri, open_data, paint
from nacre.report.render import to_csv, to_markdown
from nacre.report.results import (
    IMMATERIAL,
    Row,
    RunResult,
    ScenarioResults,
    load_results,
    shown_name,
)
from nacre.report.table import steps_table
from nacre.report.words import percent, summary

TEMPLATES = Path(__file__).parent / "templates"

LARGEST = 9_000_000
"""Bytes that a page may have; larger ones get smaller pictures."""

SIDES = (320, 224, 160, 96)


@dataclass(frozen=True)
class Section:
    """A scenario of the page: its results, and its data's plan and pictures where they are."""

    results: ScenarioResults
    plan: list[StepPlan]
    sheet: Sheet | None
    missing: str


def write_report(
    runs: Sequence[Path], out: Path, *, title: str | None = None, pictures: int = 8
) -> Path:
    """Write the page and the tables of finished runs.

    Args:
        runs: Run folders, or folders that hold run folders.
        out: Where to write.
        title: The page's title; by default made from the scenarios.
        pictures: How many pictures to show a scenario; 0 for none.

    Returns:
        The page.
    """
    sections = [_section(results, pictures) for results in load_results(runs)]
    tables = [steps_table(section.results) for section in sections]
    page = out / "index.html"
    save_text(out / "table.md", "\n".join(to_markdown(table) for table in tables))
    save_text(out / "table.csv", to_csv(tables))
    save_text(page, render_page(sections, title or _title(sections)))
    return page


def render_page(sections: Sequence[Section], title: str) -> str:
    """Return the page as text, its pictures as large as there is room."""
    text = ""
    for side in SIDES:
        text = _render(sections, title, side)
        if len(text.encode()) <= LARGEST:
            break
    return text


def _section(results: ScenarioResults, pictures: int) -> Section:
    # A report can be made where the data or the models are not; the page says what is missing.
    plan: list[StepPlan] = []
    try:
        prepared = open_data(results.rows)
        plan = make_plan(prepared.scenario, prepared.train_index, prepared.images)
        sheet = comparison_sheet(results, pictures) if pictures else None
    except NacreError as error:
        return Section(results, plan, None, str(error))
    return Section(results, plan, sheet, "")


def _title(sections: Sequence[Section]) -> str:
    return ", ".join(dict.fromkeys(section.results.scenario for section in sections))


def _render(sections: Sequence[Section], title: str, side: int) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.j2").render(
        title=title,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        sections=[_context(section, at, side) for at, section in enumerate(sections)],
        version=nacre.__version__,
        made=datetime.now().astimezone().strftime("%d %B %Y"),
    )


def _context(section: Section, at: int, side: int) -> dict[str, Any]:
    results = section.results
    found = styles(results)
    return {
        "id": f"scenario-{at}",
        "results": results,
        "summary": summary(results),
        "tables": [steps_table(results), steps_table(results, background=True)],
        "legend": [(name, Markup(key(style))) for name, style in found.items()],
        "stepwise": [(n, Markup(key(s))) for n, s in found.items() if s is not None],
        "curves": [(name, Markup(chart)) for name, chart in step_curves(results)],
        "heat": [_heat(results, row) for row in results.rows],
        "forgetting": Markup(forgetting_chart(results)),
        "forgetting_cut": MOST_CLASSES if forgetting_is_cut(results) else 0,
        "losses": [(row.name, Markup(chart)) for row in results.rows if (chart := loss_chart(row))],
        "plan": section.plan,
        "missing": section.missing,
        "sheet": section.sheet and _sheet(section.sheet, side),
        "times": [_time(row) for row in results.rows],
        "differences": _differences(results),
        "sources": [_source(run) for row in results.rows for run in row.runs],
    }


def _heat(results: ScenarioResults, row: Row) -> dict[str, Any]:
    """Return a row's IoU by class (down) and step (across)."""
    steps = [step for step in range(results.final + 1) if row.runs[0].after(step) is not None]
    names = [(name, learnt) for learnt, group in enumerate(results.groups) for name in group]
    return {
        "name": row.name,
        "steps": steps,
        "compact": len(names) > 60,
        "classes": [
            (name, learnt, [row.iou(step, name) for step in steps])
            for name, learnt in [("background", -1), *names]
        ],
    }


def _sheet(sheet: Sheet, side: int) -> dict[str, Any]:
    rows = []
    for seen in sheet.pictures:
        truth = data_uri(paint(seen.truth, sheet.colors, seen.image), side)
        cells = [
            (
                data_uri(paint(mask, sheet.colors, seen.image), side),
                f"{percent(seen.right(at), 0)} %",
            )
            for at, mask in enumerate(seen.masks)
        ]
        rows.append((seen, data_uri(Image.fromarray(seen.image), side), cells, truth))
    legend = [
        (sheet.classes[channel], "rgb({}, {}, {})".format(*sheet.colors[channel]))
        for channel in sheet.shown_classes()
    ]
    return {
        "columns": sheet.columns,
        "rows": rows,
        "legend": legend,
        "candidates": sheet.candidates,
        "untested": any((seen.truth == IGNORED).any() for seen in sheet.pictures),
    }


def _time(row: Row) -> dict[str, Any]:
    """Return how long the steps of a row's first run took, where it learnt them itself."""
    run = row.runs[0]
    seconds = {e["step"]: e["seconds"] for e in run.events if e["event"] == "learnt"}
    speeds = [e["images_per_second"] for e in run.events if e["event"] == "train"]
    return {
        "name": row.name,
        "steps": [seconds.get(0 if run.merged else at) for at in _places(run)],
        "total": sum(seconds.values()),
        "speed": sum(speeds) / len(speeds) if speeds else None,
        "device": run.starts[-1].get("device", "") if run.starts else "",
    }


def _places(run: RunResult) -> list[int]:
    """Return the steps of the task, with -1 for those that joint training does not have."""
    last = len(run.groups) - 1
    return [at if run.after(at) is not None else -1 for at in range(last + 1)]


def _differences(results: ScenarioResults) -> list[tuple[str, list[str]]]:
    """Return the config values that are not the same in all rows."""
    configs = [row.runs[0].flat_config for row in results.rows]
    keys = dict.fromkeys(key for config in configs for key in config)
    skipped = {"seed", "data.seed", "method.name", *IMMATERIAL}
    found = []
    for name in keys:
        values = ["" if name not in config else str(config[name]) for config in configs]
        if name not in skipped and len(set(values)) > 1:
            found.append((name, values))
    return found


def _source(run: RunResult) -> dict[str, Any]:
    last = run.starts[-1] if run.starts else {}
    return {
        "run": run,
        "name": shown_name(run.method),
        "start": last,
        "restarts": len(run.starts) - 1,
    }

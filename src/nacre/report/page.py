"""The report: a self-contained HTML page about finished runs, or about a step of `nacre learn`.

out/index.html   tables, charts and images
out/table.md     the table of every scenario
out/table.csv    the same numbers, one per line
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nacre.errors import NacreError
from nacre.models.io import read_info
from nacre.report.charts import key, step_curves, styles
from nacre.report.images import comparison_sheet, open_data, step_sheet
from nacre.report.kinds import make_tables
from nacre.report.results import SEEDS, Row, ScenarioResults, load_results, percent, shown_name
from nacre.report.tables import ResultTable, steps_table, to_csv, to_markdown
from nacre.runs.records import LearnMetrics
from nacre.scenarios.scenario import make_plan
from nacre.training.events import StepLearned, Trained
from nacre.utils.io import save_text
from nacre.version import __version__

TEMPLATES = Path(__file__).parent / "templates"
MAX_STEPS = 4
"""Steps whose columns fit side by side."""
COMPACT_CLASSES = 60
"""Classes from which on the heat map has no room for numbers."""


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
    scenarios = load_results(runs, notify)
    tables = [steps_table(results) for results in scenarios]
    named = title or ", ".join(dict.fromkeys(table.title for table in tables))
    save_text(out / "table.md", "\n".join(to_markdown(table) for table in tables))
    save_text(out / "table.csv", to_csv(tables))
    sections = [_section(results, images, paper) for results in scenarios]
    for i, section in enumerate(sections):
        section["id"] = f"scenario-{i}"
    return _write_page(out, "page.html.j2", title=named, sections=sections)


def is_learn_folder(path: Path) -> bool:
    """Return True for a folder of `nacre learn`: a step's model and its tests."""
    files = ("model.safetensors", "resume.safetensors")
    is_run = any(path.glob("step-*"))
    has_step = any((path / name).is_file() for name in files)
    return (path / "config.yaml").is_file() and has_step and not is_run


def write_learn_page(folder: Path, out: Path, *, images: int = 8) -> Path:
    """Write the page of a step: classes and images before and after it; return its path."""
    if not (folder / "metrics.json").is_file():
        raise NacreError(f"{folder} is not finished: resume it with  nacre learn --out {folder}")
    metrics = LearnMetrics.load(folder / "metrics.json").plain()
    missing, sheet = "", None
    try:
        sheet = step_sheet(folder, images) if images else None
    except NacreError as error:
        missing = str(error)  # the data or the start model were moved or deleted
    return _write_page(
        out,
        "learn.html.j2",
        title=folder.resolve().name,
        metrics=metrics,
        rows=class_rows(metrics),
        history=read_info(folder / "model.safetensors").history,
        sheet=sheet,
        missing=missing,
    )


def _write_page(out: Path, template: str, **values: Any) -> Path:
    """Fill a template, adding the style, the version and the date; return the file."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    text = environment.get_template(template).render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        date=datetime.now().astimezone().strftime("%d %B %Y"),
        **values,
    )
    save_text(out / "index.html", text)
    return out / "index.html"


def class_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per class: IoU before and after, agreement, verdict and test sets."""
    agreement = (metrics["agreement"] or {}).get("iou", {})
    rows = []
    for name in metrics["classes"][1:]:
        before, after = metrics["iou_before"].get(name), metrics["iou"].get(name)
        both = before is not None and after is not None
        rows.append(
            {
                "name": name,
                "is_new": name in metrics["new"],
                "before": before,
                "after": after,
                "change": after - before if both else None,
                "agreement": agreement.get(name),
                "verdict": metrics.get("verdicts", {}).get(name, {}),
                "tests": [test["name"] for test in metrics["tests"] if name in test["iou"]],
            }
        )
    return rows


def _section(results: ScenarioResults, images: int, paper: bool) -> dict[str, Any]:
    """Return the template's values for a scenario."""
    plan, sheet, missing = None, None, ""
    # Without data or models, the page is written and names what is missing.
    try:
        data = open_data(results)
        plan = make_plan(data.scenario, data.train_index, data.image_lists)
        sheet = comparison_sheet(results, data, images) if images else None
    except NacreError as error:
        missing = str(error).splitlines()[0]
    return {
        "results": results,
        "tables": _tables(results),
        "paper": _paper_table(results) if paper else None,
        "legend": [(name, Markup(key(style))) for name, style in styles(results).items()],
        "curves": [(name, Markup(chart)) for name, chart in step_curves(results)],
        "heat": [_heat(results, row) for row in results.rows],
        "plan": plan,
        "sheet": sheet,
        "missing": missing,
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


def _paper_table(results: ScenarioResults) -> ResultTable | None:
    (table,) = make_tables([results], "last", paper=True)
    return table if any(row.source == "paper" for row in table.rows) else None


def _heat(results: ScenarioResults, row: Row) -> dict[str, Any]:
    """Return the heat map of a row: IoU by class and step, and forgetting."""
    steps = [step for step in range(results.final + 1) if row.runs[0].after(step) is not None]
    names = [(name, step) for step, group in enumerate(results.groups) for name in group]
    return {
        "name": row.name,
        "steps": steps,
        "compact": len(names) > COMPACT_CLASSES,
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
    differences = []
    for name in names:
        values = ["" if name not in config else str(config[name]) for config in configs]
        if name not in (*SEEDS, "method.name") and len(set(values)) > 1:
            differences.append((name, values))
    return differences

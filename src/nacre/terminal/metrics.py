"""The metrics of one step as a table for the terminal."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table

from nacre.report.numbers import percent


def class_table(metrics: dict[str, Any]) -> RenderableType:
    """Return IoU by class and the means, background in and out."""
    table = Table(
        title=f"after step {metrics['step']}, {metrics['images']:,} test images",
        title_justify="left",
    )
    table.add_column("class")
    table.add_column("IoU %", justify="right")
    for name, value in metrics["iou"].items():
        table.add_row(name, percent(value))
    table.add_section()
    for name, value in metrics["mean_iou"].items():
        table.add_row(f"mean of {name.replace('_', ' ')}", percent(value))
    return table

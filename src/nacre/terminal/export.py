"""What an export gave, for people."""

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from nacre.export.onnx_file import Exported


def exported_table(done: "Exported") -> Table:
    """Return what is known of an ONNX file: its size, how near it is to torch, its IoU."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    sizes = ", ".join(f"{height} x {width}" for height, width in done.comparison.sizes)
    table.add_row("file", f"{done.path} ({done.size / 1e6:.1f} MB)")
    table.add_row("numbers", done.form)
    table.add_row("compared with torch at", sizes)
    table.add_row(
        "traced graph",
        f"{done.comparison.agreement:.3%} of the pixels the same, scores off by at most "
        f"{done.comparison.difference:.1e} of their range",
    )
    if done.iou is not None:
        table.add_row(f"mean IoU on {done.pictures} pictures", _cost(*done.iou))
    return table


def _cost(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return "no class of the model is in these pictures"
    return f"torch {before:.2%}, file {after:.2%} ({(after - before) * 100:+.2f} points)"

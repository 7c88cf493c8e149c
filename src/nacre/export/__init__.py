"""Export formats; the ending of the output file chooses one.

Another package registers a format with the entry point group ``nacre.export`` (name = the ending of
its files without the dot, object = an `ExportFormat`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nacre.export.onnx_file import Form, NamedModel, write_onnx
from nacre.export.page import write_page
from nacre.utils.io import check_can_write
from nacre.utils.system import find_entry

__all__ = ["EXPORTS", "ExportFormat", "Form", "NamedModel", "export_models", "find_export"]


@dataclass(frozen=True)
class ExportFormat:
    """An export format, with a function that writes models and returns a sentence about it."""

    write: Callable[[Sequence[NamedModel], Path, Form], str]


EXPORTS: dict[str, ExportFormat] = {
    "onnx": ExportFormat(write_onnx),
    "html": ExportFormat(write_page),
}


def find_export(out: Path) -> ExportFormat:
    """Return the format of an output file, after a check that the file can be written."""
    check_can_write(out)
    ending, where = out.suffix[1:].lower(), f"ending of the exported file {out}:"
    return find_entry(EXPORTS, ending, "nacre.export", ExportFormat, "export", where)


def export_models(models: Sequence[NamedModel], out: Path, *, form: Form = "fp32") -> str:
    """Write models in the format that the file's ending names; return a sentence about it."""
    return find_export(out).write(models, out, form)

"""Export formats; the ending of the file chooses one.

A form of another package is registered by the entry point group ``nacre.export`` (name = the
ending of its files without the dot, object = an `ExportFormat`).
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
    """An export format.

    Attributes:
        about: What it is, for people.
        write: Writes models into a file (models, file, numbers, license of the weights); returns a
            sentence about it for people.
    """

    about: str
    write: Callable[[Sequence[NamedModel], Path, Form, str | None], str]


EXPORTS: dict[str, ExportFormat] = {
    "onnx": ExportFormat("one ONNX file, from image to class map", write_onnx),
    "html": ExportFormat("one HTML file that runs models in a browser", write_page),
}


def find_export(out: Path) -> ExportFormat:
    """Return the form that the ending of a file asks for, if the file can be written."""
    check_can_write(out)
    ending, where = out.suffix[1:].lower(), f"ending of the exported file {out}:"
    return find_entry(EXPORTS, ending, "nacre.export", ExportFormat, "export", where)


def export_models(
    models: Sequence[NamedModel], out: Path, *, form: Form = "fp32", license: str | None = None
) -> str:
    """Write models in the form that the file's ending asks for; return a sentence about it."""
    return find_export(out).write(models, out, form, license)

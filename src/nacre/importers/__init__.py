"""From the export of an annotation tool to a folder that nacre learns from, without torch.

::

    files, documents, sniff     files of a folder or archive, JSON and XML piece by piece
    formats                     the table of formats, and a reader each
    reading                     what readers share and fill: classes, images, shapes
    rasterize, rle, shapes      the exact pixels of a shape
    labels, masks, paint        label numbers; one image and its mask
    folder, sheet, report       what is written beside them
    run                         an import from beginning to end
"""

from nacre.importers.formats import Format
from nacre.importers.labels import ClassOptions
from nacre.importers.reading import Image, Reading
from nacre.importers.report import ImportReport
from nacre.importers.run import ImportOptions, import_export

__all__ = [
    "ClassOptions",
    "Format",
    "Image",
    "ImportOptions",
    "ImportReport",
    "Reading",
    "import_export",
]

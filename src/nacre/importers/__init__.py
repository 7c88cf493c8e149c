"""From the export of an annotation tool to a folder that nacre learns from, without torch.

::

    files, documents            files of a folder or archive, JSON and XML piece by piece
    rasterize, shapes, masks    the exact pixels of a shape, the labels in a mask file
    reading                     what a reader fills: classes, images with their shapes
    formats                     the table of formats, and a reader each
    labels, paint               label numbers; one image and its mask
    folder, report              what is written beside them
    run                         an import from beginning to end
"""

from nacre.importers.formats import Format
from nacre.importers.reading import Image, Reading
from nacre.importers.report import ImportReport
from nacre.importers.run import ImportOptions, import_export

__all__ = [
    "Format",
    "Image",
    "ImportOptions",
    "ImportReport",
    "Reading",
    "import_export",
]

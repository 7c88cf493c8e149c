"""Import of the exports of annotation tools into a data folder, without torch.

::

    files, documents            files of a folder or archive; JSON, XML, YAML and text
    rasterize, shapes, masks    the exact pixels of shapes; the labels in mask files
    reading                     the content of an export: classes, images and their shapes
    formats                     the table of formats, and a reader for each
    folder, paint               labels, names and lists; the import of one image
    run                         an import from beginning to end, and its report
"""

from nacre.importers.formats import Format
from nacre.importers.reading import Image, Reading
from nacre.importers.run import ImportOptions, ImportReport, import_export

__all__ = [
    "Format",
    "Image",
    "ImportOptions",
    "ImportReport",
    "Reading",
    "import_export",
]

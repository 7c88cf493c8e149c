"""From the export of an annotation tool to a folder that nacre learns from: `nacre import`.

::

    export      tree, export          files of a folder or archive; which file a name means
    reading     detect, formats       what the format is; one reader each fills a catalogue
    catalogue   catalog, shapes       classes, pictures, shapes (on disk), whatever the tool
    painting    rasterize, rle,       exact masks, in all processes
                masks, paint, parallel
    writing     classes, naming,      labels, file names, lists, contact sheet, report
                splits, sheet, run
"""

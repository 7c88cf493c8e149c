"""Memory and time of `nacre import` on large exports, against loading them in one piece.

    python benchmarks/importing.py            # exports of 100 MB
    python benchmarks/importing.py --tiny     # for correctness only

The benchmark generates a COCO file and a CVAT file of outlines. New processes read each file with
nacre, which keeps only the shapes in memory, and with the usual calls (``json.load``,
``ElementTree.parse``). A peak is the memory above that of the process before. The benchmark also
measures the wall time of importing images on one core and on all cores.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from measuring import Row, apart, command, peaks_of, take_turns
from nacre.importers import ImportOptions, Reading, import_export
from nacre.importers.files import Export
from nacre.importers.formats import recognize

SHAPES_PER_IMAGE = 14
CORNERS = 90
SIZE = (1280, 960)


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return peaks and times of reading large exports, and of painting with all cores."""
    megabytes = 1 if tiny else 100
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as work:
        # New processes write their files there, too.
        os.environ["TMPDIR"] = work
        try:
            rows = [
                *_reading("COCO JSON", make_coco, load_json, megabytes, rounds),
                *_reading("CVAT XML", make_cvat, load_xml, megabytes, rounds),
                _painting(Path(work), 6 if tiny else 240, rounds),
            ]
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
    return rows


def make_coco(megabytes: float = 0.1) -> tuple[Path]:
    """Write a COCO file of about this size into a new folder, and return the folder."""
    folder = Path(tempfile.mkdtemp())
    _write_coco(folder, int(megabytes * 2**20))
    return (folder,)


def make_cvat(megabytes: float = 0.1) -> tuple[Path]:
    """Write a CVAT file of about this size into a new folder, and return the folder."""
    folder = Path(tempfile.mkdtemp())
    _write_cvat(folder, int(megabytes * 2**20))
    return (folder,)


def read_by_nacre(folder: Path) -> int:
    """Read an export like `nacre import`, without painting."""
    reading = Reading(Export(folder))
    recognize(reading)
    return sum(len(image.shapes) for image in reading.images)


def load_json(folder: Path) -> int:
    """Load a COCO file in one piece."""
    with (folder / "instances.json").open("rb") as file:
        return len(json.load(file)["annotations"])


def load_xml(folder: Path) -> int:
    """Load a CVAT file in one piece, and parse the numbers of its outlines."""
    root = ElementTree.parse(folder / "annotations.xml").getroot()
    outlines = [
        [float(number) for number in one.attrib["points"].replace(";", ",").split(",")]
        for one in root.iter("polygon")
    ]
    return len(outlines)


def _reading(
    kind: str,
    make: Callable[..., tuple[Path]],
    plain: Callable[[Path], int],
    megabytes: float,
    rounds: int,
) -> list[Row]:
    size = int(megabytes * 2**20)
    peaks, seconds = apart(_measure_kind, make, plain, megabytes, rounds)
    small, large, whole = peaks
    what = f"{kind} of {megabytes} MB: "
    behind = {"nacre MB": large / 2**20, "in one piece MB": whole / 2**20}
    growth = {"a tenth of it MB": small / 2**20, "all of it MB": large / 2**20}
    times = {f"{name} s": value for name, value in seconds.items()}
    slower = seconds["nacre"] / seconds["plain"]
    return [
        Row(f"{what}peak memory against the file's size", large / size, None, "most", behind),
        Row(f"{what}peak memory against a tenth of it", large / small, None, "most", growth),
        Row(f"{what}times less memory than in one piece", whole / large, None, "least", behind),
        Row(f"{what}time against loading it in one piece", slower, None, "most", times),
    ]


def _measure_kind(
    make: Callable[..., tuple[Path]], plain: Callable[[Path], int], megabytes: float, rounds: int
) -> tuple[list[int], dict[str, float]]:
    """Return the peaks of nacre on a tenth and on all, the usual call's on all, and the times."""
    for function in (read_by_nacre, plain):
        function(*make())
    (large,), (small,) = make(megabytes), make(megabytes / 10)
    peaks = peaks_of(
        lambda: read_by_nacre(small), lambda: read_by_nacre(large), lambda: plain(large)
    )
    jobs = {"nacre": lambda: read_by_nacre(large), "plain": lambda: plain(large)}
    return peaks, take_turns(jobs, rounds, time.process_time)


def _painting(work: Path, count: int, rounds: int) -> Row:
    """Compare importing images on one core and on all cores."""
    export = work / "export"
    export.mkdir()
    _write_coco(export, count * SHAPES_PER_IMAGE * CORNERS * 17)
    images = json.loads((export / "instances.json").read_text())["images"]
    for image in images:
        Image.new("RGB", SIZE, (120, 160, 90)).save(export / image["file_name"])
    turn = iter(range(1000))

    def run(workers: int | None) -> None:
        import_export(export, work / f"out-{next(turn)}", ImportOptions(workers=workers))

    jobs = {"one core": lambda: run(1), "all cores": lambda: run(None)}
    seconds = take_turns(jobs, rounds, time.perf_counter)
    what = f"import of {len(images)} images: times faster on all cores"
    behind = {f"{name} s": value for name, value in seconds.items()}
    return Row(what, seconds["one core"] / seconds["all cores"], None, "least", behind)


def _outline(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Return an outline as an annotation tool draws one."""
    angles = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    radius = rng.uniform(40, 200) * (1 + 0.2 * np.sin(rng.integers(2, 9) * angles))
    center = rng.uniform((0, 0), SIZE)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.clip(center + radius[:, None] * circle, 0, SIZE)
    return [(round(float(x), 2), round(float(y), 2)) for x, y in points]


def _outlines() -> list[list[tuple[float, float]]]:
    rng = np.random.default_rng(0)
    return [_outline(rng) for _ in range(64)]


def _write_coco(folder: Path, size: int) -> None:
    texts = [json.dumps([[value for point in one for value in point]]) for one in _outlines()]
    count = max(1, size // (len(texts[0]) + 120))
    images = -(-count // SHAPES_PER_IMAGE)
    with (folder / "instances.json").open("w") as file:
        file.write('{"categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}], ')
        file.write('"images": [')
        sizes = f'"width": {SIZE[0]}, "height": {SIZE[1]}'
        entries = (f'{{"id": {i}, "file_name": "{i:06}.jpg", {sizes}}}' for i in range(images))
        file.write(", ".join(entries))
        file.write('], "annotations": [')
        for i in range(count):
            file.write(
                f'{", " if i else ""}{{"id": {i}, "image_id": {i * 7919 % images}, '
                f'"category_id": {1 + i % 2}, "iscrowd": 0, "area": 1, "bbox": [0, 0, 1, 1], '
                f'"segmentation": {texts[i % len(texts)]}}}'
            )
        file.write("]}")


def _write_cvat(folder: Path, size: int) -> None:
    texts = [";".join(f"{x},{y}" for x, y in one) for one in _outlines()]
    count = max(1, size // (len(texts[0]) + 90))
    with (folder / "annotations.xml").open("w") as file:
        file.write("<annotations><version>1.1</version><meta/>")
        for start in range(0, count, SHAPES_PER_IMAGE):
            file.write(
                f'<image id="{start}" name="{start:06}.jpg" width="{SIZE[0]}" height="{SIZE[1]}">\n'
            )
            for i in range(start, min(count, start + SHAPES_PER_IMAGE)):
                points = texts[i % len(texts)]
                file.write(
                    f'<polygon label="cat" source="manual" occluded="0" points="{points}" '
                    'z_order="0"></polygon>\n'
                )
            file.write("</image>\n")
        file.write("</annotations>")


if __name__ == "__main__":
    command(measure, __doc__, rounds=2)

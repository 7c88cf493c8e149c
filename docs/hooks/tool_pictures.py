"""Makes the images of docs/annotation-tools.md: python docs/hooks/tool_pictures.py

A generated scene is annotated as each tool stores it (left), exported in that tool's format, and
imported by `nacre import` (right, the mask over the image).
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nacre.data.scenes import CLASS_NAMES, render
from nacre.importers import ImportOptions, import_export
from nacre.predict.polygons import simplify, trace_rings
from nacre.predict.prediction import overlay

SIDE, SCENE = 288, 18
COLORS = ((0, 0, 0), (86, 180, 233), (230, 159, 0), (0, 158, 115), (240, 228, 66))
LINE = (255, 235, 59)
OUT = Path(__file__).parents[1] / "tools"


@dataclass(frozen=True)
class Thing:
    """A region of the scene: its class, its pixels, its outline."""

    name: str
    mask: np.ndarray
    points: np.ndarray

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return (*self.points.min(0).tolist(), *self.points.max(0).tolist())


def scene() -> tuple[np.ndarray, list[Thing]]:
    """Return an image and its things, the larger ones first."""
    pixels, mask = render(1, SCENE, SIDE)
    rings = [ring for ring in trace_rings(mask) if ring.channel and ring.area > 400]
    things = []
    for ring in rings:
        image = Image.new("1", (SIDE, SIDE))
        ImageDraw.Draw(image).polygon([tuple(point) for point in ring.points], fill=1)
        inside = np.asarray(image) & (mask == ring.channel)
        things.append(Thing(CLASS_NAMES[ring.channel - 1], inside, simplify(ring.points, 2.0)))
    return pixels, things


def png(values: np.ndarray) -> bytes:
    """Return an array as a PNG."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def write(path: Path, content: Any) -> None:
    """Write bytes, a text, or JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def runs_of(flat: np.ndarray) -> list[int]:
    """Return the lengths of runs of a mask, what is outside first."""
    lengths = [len(list(group)) for _, group in itertools.groupby(flat.tolist())]
    return [0, *lengths] if flat[0] else lengths


def cvat(root: Path, things: list[Thing]) -> list[str]:
    """CVAT for images 1.1."""
    kinds, lines = ["polygon", "ellipse", "mask", "box"], []
    for kind, thing in zip(itertools.cycle(kinds), things, strict=False):
        left, top, right, bottom = thing.box
        points = ";".join(f"{x:.2f},{y:.2f}" for x, y in thing.points)
        x, y = (left + right) / 2, (top + bottom) / 2
        part = thing.mask[int(top) : int(bottom), int(left) : int(right)]
        runs = ", ".join(map(str, runs_of(part.ravel())))
        lines.append(
            {
                "polygon": f'<polygon label="{thing.name}" points="{points}" z_order="0"/>',
                "box": f'<box label="{thing.name}" xtl="{left}" ytl="{top}" xbr="{right}" '
                f'ybr="{bottom}" z_order="0"/>',
                "ellipse": f'<ellipse label="{thing.name}" cx="{x}" cy="{y}" '
                f'rx="{(right - left) / 2}" ry="{(bottom - top) / 2}" z_order="0"/>',
                "mask": f'<mask label="{thing.name}" rle="{runs}" left="{left:.0f}" '
                f'top="{top:.0f}" width="{right - left:.0f}" height="{bottom - top:.0f}"/>',
            }[kind]
        )
    image = f'<image id="0" name="scene.png" width="{SIDE}" height="{SIDE}">'
    write(
        root / "annotations.xml",
        f"<annotations><version>1.1</version>{image}{''.join(lines)}</image></annotations>",
    )
    return kinds


def labelme(root: Path, things: list[Thing]) -> list[str]:
    """LabelMe's file beside the image."""
    shapes = []
    kinds = ["polygon", "ellipse", "polygon", "polygon"]
    for kind, thing in zip(itertools.cycle(kinds), things, strict=False):
        left, top, right, bottom = thing.box
        center = [(left + right) / 2, (top + bottom) / 2]
        circle = [center, [center[0] + (right - left) / 2, center[1]]]
        shape = {"shape_type": "polygon", "points": thing.points.tolist()}
        if kind == "ellipse":
            shape = {"shape_type": "circle", "points": circle}
        shapes.append({"label": thing.name, "group_id": None, "flags": {}, **shape})
    content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": "scene.png"}
    sizes = {"imageData": None, "imageHeight": SIDE, "imageWidth": SIDE}
    write(root / "scene.json", content | sizes)
    return kinds


def coco(root: Path, things: list[Thing]) -> list[str]:
    """COCO instances: outlines and runs."""
    kinds = ["polygon", "mask"]
    names = sorted({thing.name for thing in things})
    annotations = []
    for i, (kind, thing) in enumerate(zip(itertools.cycle(kinds), things, strict=False), start=1):
        outline: Any = [thing.points.ravel().tolist()]
        if kind == "mask":
            outline = {"size": [SIDE, SIDE], "counts": runs_of(thing.mask.ravel(order="F"))}
        annotations.append(
            {"id": i, "image_id": 1, "category_id": names.index(thing.name) + 1, "iscrowd": 0}
            | {"segmentation": outline, "area": int(thing.mask.sum())}
        )
    write(
        root / "annotations" / "instances_default.json",
        {
            "images": [{"id": 1, "file_name": "scene.png", "width": SIDE, "height": SIDE}],
            "categories": [{"id": i, "name": name} for i, name in enumerate(names, start=1)],
            "annotations": annotations,
        },
    )
    return kinds


def roboflow(root: Path, things: list[Thing]) -> list[str]:
    """Roboflow's semantic segmentation masks."""
    names = sorted({thing.name for thing in things})
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for thing in things:
        mask[thing.mask] = names.index(thing.name) + 1
    lines = [f"{i}, {name}" for i, name in enumerate(["background", *names])]
    write(root / "_classes.csv", "\n".join(["Pixel Value, Class", *lines]) + "\n")
    write(root / "scene_mask.png", png(mask))
    return ["mask"]


def label_studio(root: Path, things: list[Thing]) -> list[str]:
    """Label Studio's JSON: brushes and polygons in percent."""
    kinds = ["mask", "polygon"]
    results = []
    for kind, thing in zip(itertools.cycle(kinds), things, strict=False):
        sizes = {"original_width": SIDE, "original_height": SIDE, "image_rotation": 0}
        value: dict[str, Any] = {"polygonlabels": [thing.name], "closed": True}
        value["points"] = (thing.points * 100 / SIDE).tolist()
        if kind == "mask":
            value = {"format": "rle", "rle": brush(thing.mask), "brushlabels": [thing.name]}
        words = {"to_name": "image", "from_name": "tag"}
        found = next(key for key in value if key.endswith("labels"))
        results.append({"type": found, "value": value, **sizes, **words})
    annotation = {"id": 1, "result": results, "was_cancelled": False}
    data = {"image": "/data/upload/1/0a1b2c3d-scene.png"}
    write(root / "project-1.json", [{"id": 1, "data": data, "annotations": [annotation]}])
    return kinds


def brush(mask: np.ndarray) -> list[int]:
    """Return a mask as Label Studio's stream of runs: all four channels hold it."""
    flat = np.repeat(mask.ravel() * 255, 4).tolist()
    bits = f"{len(flat):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    for value, group in itertools.groupby(flat):
        count = len(list(group))
        while count:
            step = min(count, 1 << 16)
            bits += f"111{step - 1:016b}{value:08b}"
            count -= step
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


def ultralytics(root: Path, things: list[Thing]) -> list[str]:
    """YOLO's text file."""
    names = sorted({thing.name for thing in things})
    write(root / "data.yaml", f"train: images\nval: images\nnames: {json.dumps(names)}\n")
    lines = [
        f"{names.index(thing.name)} " + " ".join(f"{one:.6f}" for one in (thing.points / SIDE).flat)
        for thing in things
    ]
    write(root / "labels" / "scene.txt", "\n".join(lines) + "\n")
    (root / "images").mkdir()
    (root / "scene.png").rename(root / "images" / "scene.png")
    return ["polygon"]


def supervisely(root: Path, things: list[Thing]) -> list[str]:
    """Supervisely: bitmaps at an origin, and polygons."""
    kinds = ["mask", "polygon"]
    objects = []
    for kind, thing in zip(itertools.cycle(kinds), things, strict=False):
        left, top, right, bottom = (int(one) for one in thing.box)
        shape: dict[str, Any] = {"geometryType": "polygon"}
        shape["points"] = {"exterior": thing.points.tolist(), "interior": []}
        if kind == "mask":
            part = thing.mask[top:bottom, left:right].astype(np.uint8) * 255
            data = base64.b64encode(zlib.compress(png(part))).decode()
            shape = {"geometryType": "bitmap", "bitmap": {"data": data, "origin": [left, top]}}
        objects.append({"classTitle": thing.name, **shape})
    titles = [{"title": name} for name in sorted({thing.name for thing in things})]
    write(root / "meta.json", {"classes": titles, "tags": []})
    size = {"width": SIDE, "height": SIDE}
    write(root / "sea" / "ann" / "scene.png.json", {"size": size, "objects": objects})
    (root / "sea" / "img").mkdir()
    (root / "scene.png").rename(root / "sea" / "img" / "scene.png")
    return kinds


TOOLS: dict[str, Callable[[Path, list[Thing]], list[str]]] = {
    "cvat": cvat,
    "roboflow": roboflow,
    "label-studio": label_studio,
    "labelme": labelme,
    "ultralytics": ultralytics,
    "coco": coco,
    "supervisely": supervisely,
}


def annotated(pixels: np.ndarray, things: list[Thing], kinds: list[str]) -> Image.Image:
    """Draw things as a tool stores them."""
    image = Image.fromarray(pixels)
    for kind, thing in zip(itertools.cycle(kinds), things, strict=False):
        pen = ImageDraw.Draw(image, "RGBA")
        left, top, right, bottom = thing.box
        if kind == "mask":
            shown = Image.new("RGB", image.size, LINE)
            image.paste(shown, mask=Image.fromarray(thing.mask.astype(np.uint8) * 130))
        elif kind == "box":
            pen.rectangle((left, top, right, bottom), outline=LINE, width=2)
        elif kind == "ellipse":
            pen.ellipse((left, top, right, bottom), outline=LINE, width=2)
        else:
            corners = [(x, y) for x, y in thing.points.tolist()]
            pen.line([*corners, corners[0]], fill=LINE, width=2)
            for x, y in corners:
                pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=LINE)
        pen = ImageDraw.Draw(image)
        place = ((left + right) / 2, (top + bottom) / 2)
        font = ImageFont.load_default(14)
        pen.text(place, thing.name, "white", font, "mm", stroke_width=2, stroke_fill="black")
    return image


def image(tool: str) -> Image.Image:
    """Return what a tool stores beside what was imported."""
    pixels, things = scene()
    with tempfile.TemporaryDirectory() as folder:
        root, data = Path(folder) / "export", Path(folder) / "data"
        write(root / "scene.png", png(pixels))
        kinds = TOOLS[tool](root, things)
        import_export(root, data, ImportOptions())
        (mask,) = (data / "masks").rglob("*.png")
        with Image.open(mask) as stored:
            labels = np.array(stored)
    found = overlay(pixels, labels, COLORS)
    both = Image.new("RGB", (2 * SIDE + 8, SIDE), "white")
    both.paste(annotated(pixels, things, kinds), (0, 0))
    both.paste(found, (SIDE + 8, 0))
    return both


def main() -> None:
    """Write all images."""
    OUT.mkdir(exist_ok=True)
    for tool in TOOLS:
        image(tool).save(OUT / f"{tool}.jpg", quality=78, optimize=True)


if __name__ == "__main__":
    main()

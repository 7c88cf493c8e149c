"""Writers of three small images in the export format of every annotation tool.

``a`` and ``b`` show a large cat and a small dog on top of it; ``empty`` shows nothing. ``a`` is for
training and ``b`` for validation if a tool stores splits. All corners are whole pixels, so the
masks of all tools must be equal.
"""

import base64
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

Mask = NDArray[np.uint8]

CLASSES = ("cat", "dog")
SIZES = {"a": (16, 12), "b": (21, 10), "empty": (9, 9)}
BOXES = {
    "a": [("cat", (2, 3, 12, 10)), ("dog", (8, 5, 14, 9))],
    "b": [("cat", (0, 0, 9, 10)), ("dog", (4, 2, 7, 6))],
    "empty": [],
}
"""Class and left, top, right, bottom, in the order in which they are painted."""

SPLITS = {"a": "train", "b": "val", "empty": "train"}
COLORS = {"cat": (250, 50, 83), "dog": (51, 221, 255)}


def truth(name: str) -> Mask:
    """Return the mask of an image: 1 is cat, 2 is dog."""
    width, height = SIZES[name]
    mask = np.zeros((height, width), np.uint8)
    for label, (left, top, right, bottom) in BOXES[name]:
        mask[top:bottom, left:right] = CLASSES.index(label) + 1
    return mask


def hex_of(name: str) -> str:
    """Return the color of a class as tools write it."""
    return "#" + "".join(f"{one:02x}" for one in COLORS[name])


def bits_of(name: str, box: tuple[int, int, int, int]) -> Mask:
    """Return one box as a mask of its own."""
    width, height = SIZES[name]
    mask = np.zeros((height, width), np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 1
    return mask


def corners(box: tuple[int, int, int, int]) -> list[list[float]]:
    """Return the four corners of a box."""
    left, top, right, bottom = (float(one) for one in box)
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def outline(box: tuple[int, int, int, int]) -> list[list[float]]:
    """Return the corners and a point on an edge: an outline that is not taken for a frame."""
    return [*corners(box), [float(box[0]), (box[1] + box[3]) / 2]]


def save_image(path: Path, size: tuple[int, int], seed: int = 0, **more: Any) -> None:
    """Write an image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(path, **more)


def save_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def save_text(path: Path, text: str) -> None:
    """Write a text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def save_png(path: Path, values: NDArray[Any]) -> None:
    """Write a PNG of any depth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def png_bytes(values: NDArray[Any]) -> bytes:
    """Return a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def runs_of(flat: NDArray[Any]) -> list[int]:
    """Return run lengths, zeros first."""
    runs = [0] if flat[0] else []
    return runs + [len(list(group)) for _, group in groupby(flat.tolist())]


def compress(runs: list[int]) -> str:
    """Return COCO's compressed text of run lengths."""
    text = ""
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        more = True
        while more:
            bits = value & 0x1F
            value >>= 5
            more = value != -1 if bits & 0x10 else value != 0
            text += chr((bits | 0x20 if more else bits) + 48)
    return text


def brush_code(mask: Mask, literal: bool = False) -> list[int]:
    """Return Label Studio's brush stream of a mask: all four channels hold it, 0 or 255."""
    flat = np.repeat(mask.reshape(-1) * 255, 4).tolist()
    bits = f"{len(flat):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    if literal:
        for start in range(0, len(flat), 256):
            part = flat[start : start + 256]
            bits += "010" + f"{len(part) - 1:08b}" + "".join(f"{one:08b}" for one in part)
    else:
        for value, group in groupby(flat):
            count = len(list(group))
            while count:
                step = min(count, 65536)
                bits += "111" + f"{step - 1:016b}" + f"{value:08b}"
                count -= step
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


def coco_content(names: list[str], rle: str = "", first_id: int = 1) -> dict[str, Any]:
    """Return a COCO file of some images; ``rle`` is '', 'list' or 'text'."""
    images, annotations = [], []
    for i, name in enumerate(names):
        width, height = SIZES[name]
        images.append(
            {"id": i + first_id, "file_name": f"{name}.jpg", "width": width, "height": height}
        )
        for label, box in BOXES[name]:
            mask = bits_of(name, box)
            runs = runs_of(mask.reshape(-1, order="F"))
            segmentation: Any = [[value for corner in outline(box) for value in corner]]
            if rle:
                counts = compress(runs) if rle == "text" else runs
                segmentation = {"size": [height, width], "counts": counts}
            ids = {"id": len(annotations) + 1, "image_id": i + first_id}
            ids |= {"category_id": CLASSES.index(label) + first_id, "iscrowd": 0}
            extent = {"bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}
            extent |= {"area": int(mask.sum()), "attributes": {"occluded": False}}
            annotations.append(ids | {"segmentation": segmentation} | extent)
    # The smaller dog stands first here: its place in the list must not matter.
    return {
        "licenses": [{"name": "", "id": 0, "url": ""}],
        "info": {"contributor": "", "date_created": ""},
        "categories": [
            {"id": i + first_id, "name": name, "supercategory": ""}
            for i, name in enumerate(CLASSES)
        ],
        "images": images,
        "annotations": annotations[::-1],
    }


def coco_cvat(root: Path) -> None:
    """CVAT "COCO 1.0" of a project with subsets."""
    for split in ("train", "val"):
        names = [name for name in SIZES if SPLITS[name] == split]
        save_json(root / "annotations" / f"instances_{split}.json", coco_content(names))
        for name in names:
            save_image(root / "images" / split / f"{name}.jpg", SIZES[name])


def coco_rle(root: Path) -> None:
    """One COCO file with runs, images in a folder."""
    content = coco_content(list(SIZES), "list")
    save_json(root / "result.json", content)
    for name in SIZES:
        save_image(root / "images" / f"{name}.jpg", SIZES[name])


def coco_compressed(root: Path) -> None:
    """COCO as the original is ordered, with compressed runs; the categories come last."""
    content = coco_content(list(SIZES), "text", first_id=0)
    order = ("info", "images", "licenses", "annotations", "categories")
    save_json(root / "annotations" / "instances_default.json", {key: content[key] for key in order})
    for name in SIZES:
        save_image(root / "images" / "default" / f"{name}.jpg", SIZES[name])


def coco_roboflow(root: Path) -> None:
    """Roboflow's COCO: a file per split beside the images, and a category for a group."""
    for split, folder in (("train", "train"), ("val", "valid")):
        names = [name for name in SIZES if SPLITS[name] == split]
        content = coco_content(names)
        content["categories"] = [{"id": 0, "name": "animals", "supercategory": "none"}] + [
            {"id": i + 1, "name": name, "supercategory": "animals"}
            for i, name in enumerate(CLASSES)
        ]
        save_json(root / folder / "_annotations.coco.json", content)
        for name in names:
            save_image(root / folder / f"{name}.jpg", SIZES[name])
    save_text(root / "README.roboflow.txt", "provided by a user")


def coco_panoptic(root: Path) -> None:
    """COCO panoptic: segment numbers as colors."""
    images, annotations = [], []
    for i, name in enumerate(SIZES):
        width, height = SIZES[name]
        images.append({"id": i, "file_name": f"{name}.jpg", "width": width, "height": height})
        ids = np.zeros((height, width), np.uint32)
        segments = []
        for number, (label, box) in enumerate(BOXES[name]):
            segment = 70_001 * (number + 1)
            ids[box[1] : box[3], box[0] : box[2]] = segment
            segments.append({"id": segment, "category_id": 7 + CLASSES.index(label), "iscrowd": 0})
        colors = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=2).astype(np.uint8)
        save_png(root / "panoptic_default" / f"{name}.png", colors)
        annotations.append({"image_id": i, "file_name": f"{name}.png", "segments_info": segments})
        save_image(root / "images" / f"{name}.jpg", SIZES[name])
    categories = [{"id": 7 + i, "name": name, "isthing": 1} for i, name in enumerate(CLASSES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    save_json(root / "panoptic_default.json", content)


def cvat_xml(root: Path) -> None:
    """CVAT for images 1.1: polygons, boxes and masks, the upper ones first: z_order counts."""
    labels = "".join(
        f"<label><name>{name}</name><color>{hex_of(name)}</color><type>any</type>"
        "<attributes></attributes></label>"
        for name in CLASSES
    )
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'
        "<meta><project>"
        f"<id>1</id><name>p</name><labels>{labels}</labels></project><dumped>2024</dumped></meta>"
    ]
    for i, name in enumerate(SIZES):
        width, height = SIZES[name]
        subset = {"train": "Train", "val": "Validation"}[SPLITS[name]]
        lines.append(
            f'<image id="{i}" name="{name}.jpg" subset="{subset}" '
            f'width="{width}" height="{height}">'
        )
        for order, (label, box) in reversed(list(enumerate(BOXES[name]))):
            left, top, right, bottom = box
            common = f'label="{label}" source="manual" occluded="0" z_order="{order - 1}"'
            if (i + order) % 3 == 0:
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in corners(box))
                lines.append(f'<polygon {common} points="{points}"></polygon>')
            elif (i + order) % 3 == 1:
                lines.append(
                    f'<box {common} xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"></box>'
                )
            else:
                size = (right - left) * (bottom - top)
                lines.append(
                    f'<mask {common} rle="0, {size}" left="{left}" top="{top}" '
                    f'width="{right - left}" height="{bottom - top}"></mask>'
                )
        lines.append("</image>")
        save_image(root / "images" / subset / f"{name}.jpg", SIZES[name])
    save_text(root / "annotations.xml", "\n".join([*lines, "</annotations>"]))


def cvat_masks(root: Path) -> None:
    """CVAT segmentation mask 1.1; the image without a shape has no mask."""
    colors = {"background": (0, 0, 0)} | COLORS
    lines = ["# label:color_rgb:parts:actions"]
    lines += [
        f"{name}:{','.join(map(str, color))}::"
        for name, color in sorted(colors.items(), reverse=True)
    ]
    save_text(root / "labelmap.txt", "\n".join(lines) + "\n")
    for split in ("train", "val"):
        names = [name for name in SIZES if SPLITS[name] == split]
        save_text(root / "ImageSets" / "Segmentation" / f"{split}.txt", "\n".join(names) + "\n")
    table = np.array([(0, 0, 0), *COLORS.values()], np.uint8)
    for name in SIZES:
        save_image(root / "JPEGImages" / f"{name}.jpg", SIZES[name])
        if BOXES[name]:
            save_png(root / "SegmentationClass" / f"{name}.png", table[truth(name)])
            save_png(root / "SegmentationObject" / f"{name}.png", table[truth(name)])


def labelme(root: Path) -> None:
    """LabelMe: files beside the images, a Windows path, an old file without shape_type."""
    for name in SIZES:
        shapes: list[dict[str, Any]] = []
        for i, (label, box) in enumerate(BOXES[name]):
            shape = {"label": label, "points": corners(box), "group_id": None, "flags": {}}
            if i % 2:
                shape |= {"shape_type": "rectangle", "points": [[box[2], box[1]], [box[0], box[3]]]}
            elif name == "b":
                inside = np.ones((box[3] - box[1], box[2] - box[0]), np.uint8) * 255
                data = base64.b64encode(png_bytes(inside)).decode()
                last = [box[2] - 1, box[3] - 1]
                shape |= {"shape_type": "mask", "points": [[box[0], box[1]], last], "mask": data}
            shapes.append(shape)
        width, height = SIZES[name]
        content = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imageData": None}
        content |= {"imagePath": f"..\\{root.name}\\{name}.jpg"}
        save_json(root / f"{name}.json", content | {"imageHeight": height, "imageWidth": width})
        save_image(root / f"{name}.jpg", SIZES[name])


def yolo(root: Path) -> None:
    """YOLO-seg as Roboflow lays it out, with the paths that it writes."""
    content = {
        "train": "../train/images",
        "val": "../valid/images",
        "test": "../test/images",
        "nc": 2,
        "names": list(CLASSES),
    }
    save_text(root / "data.yaml", yaml.safe_dump(content))
    for name in SIZES:
        folder = {"train": "train", "val": "valid"}[SPLITS[name]]
        width, height = SIZES[name]
        lines = []
        for label, box in BOXES[name]:
            values = [f"{x / width:.17g} {y / height:.17g}" for x, y in outline(box)]
            lines.append(f"{CLASSES.index(label)} {' '.join(values)}")
        save_text(root / folder / "labels" / f"{name}.txt", "\n".join(lines[::-1]))
        save_image(root / folder / "images" / f"{name}.jpg", SIZES[name])


def roboflow_masks(root: Path) -> None:
    """Roboflow's masks."""
    for split, folder in (("train", "train"), ("val", "valid")):
        save_text(
            root / folder / "_classes.csv", "Pixel Value, Class\n0, background\n1, cat\n2, dog\n"
        )
        for name in SIZES:
            if SPLITS[name] == split:
                save_image(root / folder / f"{name}.jpg", SIZES[name])
                save_png(root / folder / f"{name}_mask.png", truth(name))


def label_studio(root: Path) -> None:
    """Label Studio's JSON: polygons, a box and brushes; one canceled and one older annotation."""
    tasks = []
    for i, name in enumerate(SIZES):
        width, height = SIZES[name]
        results = []
        for place, (label, box) in enumerate(BOXES[name]):
            left, top, right, bottom = box
            result: dict[str, Any] = {"id": f"r{place}", "from_name": "label", "to_name": "image"}
            result |= {"original_width": width, "original_height": height, "image_rotation": 0}
            if (i + place) % 3 == 0:
                kind = "polygon"
                points = [[100 * x / width, 100 * y / height] for x, y in corners(box)]
                value: dict[str, Any] = {"points": points, "closed": True}
            elif (i + place) % 3 == 1:
                kind, value = "brush", {"format": "rle", "rle": brush_code(bits_of(name, box))}
            else:
                kind, value = "rectangle", {"x": 100 * left / width, "y": 100 * top / height}
                value |= {"width": 100 * (right - left) / width, "rotation": 0}
                value |= {"height": 100 * (bottom - top) / height}
            key = f"{kind}labels"
            result |= {"type": key, "value": value | {key: [label]}}
            results.append(result)
        value = {"points": [[0, 0], [100, 0], [50, 50]], "polygonlabels": ["dog"]}
        wrong = [{"type": "polygonlabels", "value": value}]
        annotations = [
            {"id": number, "result": result, "was_cancelled": number == 3}
            | {"updated_at": f"{year}-01-01T00:00:00Z"}
            for number, result, year in ((3, wrong, 2025), (1, wrong, 2023), (2, results, 2024))
        ]
        address = {"image": f"/data/upload/1/0123abcd-{name}.jpg"}
        task = {"id": i + 1, "project": 1, "predictions": [], "annotations": annotations}
        tasks.append(task | {"file_upload": f"0123abcd-{name}.jpg", "data": address})
        save_image(root / "images" / f"{name}.jpg", SIZES[name])
    save_json(root / "project-1-at-2024.json", tasks)


def supervisely(root: Path) -> None:
    """Supervisely: polygons and bitmaps in two data sets."""
    classes = [
        {"title": name, "shape": "any", "color": hex_of(name), "id": i}
        for i, name in enumerate(CLASSES)
    ]
    save_json(root / "meta.json", {"classes": classes, "tags": []})
    for name in SIZES:
        width, height = SIZES[name]
        objects = []
        for i, (label, box) in enumerate(BOXES[name]):
            left, top, right, bottom = box
            item: dict[str, Any] = {
                "classTitle": label,
                "classId": CLASSES.index(label),
                "tags": [],
            }
            if i % 2 == 0:
                points = {"exterior": corners(box), "interior": []}
                item |= {"geometryType": "polygon", "points": points}
            else:
                inside = np.zeros((bottom - top, right - left, 4), np.uint8)
                inside[:] = 255
                data = base64.b64encode(zlib.compress(png_bytes(inside))).decode()
                item |= {"geometryType": "bitmap", "bitmap": {"data": data, "origin": [left, top]}}
            objects.append(item)
        size = {"height": height, "width": width}
        content = {"description": "", "tags": [], "size": size, "objects": objects}
        save_json(root / SPLITS[name] / "ann" / f"{name}.jpg.json", content)
        save_image(root / SPLITS[name] / "img" / f"{name}.jpg", SIZES[name])


def cityscapes(root: Path) -> None:
    """Cityscapes with label ids: cats are cars and dogs are buses, all else is road."""
    values = np.array((7, 26, 28), np.uint8)
    for name in SIZES:
        stem = f"aachen_{name}_000019"
        folder = f"{SPLITS[name]}/aachen"
        save_image(root / "leftImg8bit" / folder / f"{stem}_leftImg8bit.png", SIZES[name])
        mask = root / "gtFine" / folder / f"{stem}_gtFine_labelIds.png"
        save_png(mask, values[truth(name)])


TOOLS: dict[str, tuple[str, Callable[[Path], None], bool]] = {
    "coco_cvat": ("coco", coco_cvat, True),
    "coco_rle": ("coco", coco_rle, False),
    "coco_compressed": ("coco", coco_compressed, False),
    "coco_roboflow": ("coco", coco_roboflow, True),
    "coco_panoptic": ("coco-panoptic", coco_panoptic, False),
    "cvat_xml": ("cvat", cvat_xml, True),
    "cvat_masks": ("masks", cvat_masks, True),
    "labelme": ("labelme", labelme, False),
    "yolo": ("yolo", yolo, True),
    "roboflow_masks": ("masks", roboflow_masks, True),
    "label_studio": ("label-studio", label_studio, False),
    "supervisely": ("supervisely", supervisely, True),
}
"""Format, writer, and whether the export stores splits, by tool."""


WRITERS: dict[str, Callable[[Path], None]] = {
    **{tool: write for tool, (_, write, _) in TOOLS.items()},
    "cityscapes": cityscapes,
}
"""The writers of all tools, and of formats with fixed classes."""


def zip_folder(folder: Path, archive: Path, top: str = "") -> Path:
    """Pack a folder, with one folder around everything if ``top`` is given."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, f"{top}{path.relative_to(folder).as_posix()}")
    return archive

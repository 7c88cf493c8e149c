"""What an ONNX file says about itself: classes, colours, lineage, pixels, licence.

It is plain JSON under the key ``nacre`` of the file's metadata; the class names stand beside it
under ``names``, where other programs look for them.
"""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from nacre.errors import NacreError, describe_errors
from nacre.models.io import Level, Lineage, ModelInfo, Name, NumChannels, check_channels
from nacre.utils.io import parse_json
from nacre.version import __version__

if TYPE_CHECKING:
    from onnx import ModelProto

KEY = "nacre"
MOST_CLASSES = 256
"""That a class map of 8 bits can tell apart."""

NOT_STATED = "not stated"

Color = tuple[Level, Level, Level]
Side = Annotated[int, Field(strict=True, ge=1, le=8192)]
Word = Annotated[str, Field(max_length=1000)]


@dataclass(frozen=True)
class Metadata:
    """What a file says about its network.

    Attributes:
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
        steps: NumChannels that each step added, with the background in step 0.
        lineage: For each step: its classes and the number of its images.
        crop: Side of the pictures that the network was trained on.
        predict_mode: How the graph shows an image to it: ``crop`` (its shorter side scaled to the
            crop), ``full`` (at its own size) or ``sliding`` (through windows of the crop's size).
        form: `fp32` or `fp16`.
        license: Of the weights, as whoever exported them said.
        version: Of nacre.
    """

    classes: Annotated[list[Name], Field(min_length=1, max_length=MOST_CLASSES)]
    colors: list[Color]
    steps: Annotated[list[NumChannels], Field(min_length=1, max_length=MOST_CLASSES)]
    lineage: Lineage
    crop: Side
    predict_mode: Literal["crop", "full", "sliding"]
    form: Word
    license: Word = NOT_STATED
    version: Word = __version__


def describe(info: ModelInfo, form: str, license: str | None) -> Metadata:
    """Return what there is to say about a model."""
    return Metadata(
        classes=list(info.classes),
        colors=[(red, green, blue) for red, green, blue in info.colors],
        steps=list(info.steps),
        lineage=list(info.lineage),
        crop=info.crop,
        predict_mode=info.predict_mode,
        form=form,
        license=license or NOT_STATED,
    )


def write_metadata(graph: "ModelProto", metadata: Metadata) -> None:
    """Put the metadata into a graph, in the place of any before."""
    del graph.metadata_props[:]
    names = dict(enumerate(metadata.classes))
    for key, value in ((KEY, asdict(metadata)), ("names", names)):
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value, default=str)
    graph.producer_name, graph.producer_version = "nacre", metadata.version
    graph.doc_string = f"nacre: {', '.join(metadata.classes)}"


def read_metadata(entries: dict[str, str], place: str) -> Metadata:
    """Read the metadata of a file.

    Args:
        entries: All metadata of the file.
        place: The file, for an error.
    """
    try:
        metadata = TypeAdapter(Metadata).validate_python(parse_json(entries[KEY]))
        counts = {"colors": len(metadata.colors), "channels": sum(metadata.steps)}
        check_channels(metadata.classes, counts)
        return metadata
    except ValidationError as error:
        reason = describe_errors(error, Metadata)
    except NacreError as error:
        reason = str(error)
    except (KeyError, ValueError) as error:
        reason = f"its metadata {'are missing' if isinstance(error, KeyError) else 'are no JSON'}"
    raise NacreError(f"{place} was not written by this version of `nacre export`: {reason}")

"""Using a learnt model on pictures: from an image to a mask of class names."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nacre.data.image_io import load as decode
from nacre.data.image_io import open_image
from nacre.errors import NacreError
from nacre.evaluation.inference import predict_classes
from nacre.models.io import ModelInfo, find_model, load_model
from nacre.models.network import Network
from nacre.utils.device import choose_device
from nacre.utils.io import save

Picture = str | Path | Image.Image | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Prediction:
    """What a model sees in a picture.

    Attributes:
        mask: Channel of each pixel, of the picture's size.
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
    """

    mask: npt.NDArray[np.uint8]
    classes: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]

    @property
    def names(self) -> npt.NDArray[np.str_]:
        """The mask as class names."""
        return np.array(self.classes)[self.mask]

    def shares(self) -> dict[str, float]:
        """Return which share of the picture each class covers, largest first."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable")
        return {self.classes[at]: float(counts[at] / self.mask.size) for at in order if counts[at]}

    def picture(self) -> Image.Image:
        """Return the mask as a palette image: label values are channels."""
        image = Image.fromarray(self.mask)
        image.putpalette([value for color in self.colors for value in color])
        return image

    def over(self, picture: Picture, strength: float = 0.6) -> Image.Image:
        """Return the picture with the classes laid over it in colour."""
        image = np.asarray(_rgb(picture), np.float32)
        colors = np.array(self.colors, np.float32)[self.mask]
        weight = np.where(self.mask > 0, strength, 0.0)[..., None].astype(np.float32)
        return Image.fromarray((image * (1 - weight) + colors * weight).round().astype(np.uint8))


@dataclass(frozen=True)
class Model:
    """A learnt network and what its channels mean.

    Attributes:
        network: The network, in eval mode.
        info: What its file says about it.
    """

    network: Network
    info: ModelInfo

    @property
    def classes(self) -> tuple[str, ...]:
        """Class name by channel; channel 0 is the background."""
        return tuple(self.info.classes)

    @torch.inference_mode()
    def predict(self, picture: Picture) -> Prediction:
        """Say what is where in a picture, at its own size.

        The picture is scaled so that its shorter side is that of the training crops.
        """
        image = _rgb(picture)
        shorter = min(image.size)
        scale = self.info.crop / shorter
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        pixels = np.array(image.resize(size, Image.Resampling.BILINEAR))
        device = next(self.network.parameters()).device
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].to(device)
        labels = predict_classes(self.network(batch).logits, (image.height, image.width))
        mask = labels[0].cpu().numpy()
        colors = tuple((c[0], c[1], c[2]) for c in self.info.colors)
        return Prediction(mask, self.classes, colors)


def load(path: str | Path, device: str = "auto") -> Model:
    """Load a model from a run folder (its last step), a step folder or a model file."""
    network, info, _ = load_model(find_model(Path(path)), choose_device(device))
    return Model(network, info)


def _rgb(picture: Picture) -> Image.Image:
    if isinstance(picture, str | Path):
        return decode(open_image(Path(picture)))
    if isinstance(picture, np.ndarray):
        if (
            picture.dtype != np.uint8
            or picture.ndim not in (2, 3)
            or picture.shape[2:]
            not in (
                (),
                (3,),
            )
        ):
            raise NacreError(
                f"an array must be uint8 of height x width x 3, not {picture.dtype} of "
                f"{' x '.join(map(str, picture.shape))}"
            )
        picture = Image.fromarray(picture)
    return picture.convert("RGB")


def write_prediction(model: Model, path: Path, out: Path) -> dict[str, float]:
    """Write a picture's mask and overlay into a folder; return the share of each class."""
    prediction = model.predict(path)
    save(out / f"{path.stem}-mask.png", lambda file: prediction.picture().save(file, "PNG"))
    save(out / f"{path.stem}-seen.png", lambda file: prediction.over(path).save(file, "PNG"))
    return prediction.shares()

"""A folder of traps, and hostile headers of model files that lead to them."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzz.values import change_header
from nacre.models.build import build_network, read_model_config
from nacre.models.io import ModelInfo, save_model
from noise_data import noise_folder

OURS: dict[str, Any] = {"kind": "deeplab", "backbone": "tiny", "decoder_channels": 8}
TRANSFORMERS = {"kind": "external", "library": "transformers"}
SEGFORMER: dict[str, Any] = {
    **TRANSFORMERS,
    "name": "segformer",
    "weights": "none",
    "options": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
}
REMOTE = (
    "from transformers import PretrainedConfig\nclass EvilConfig(PretrainedConfig):\n    pass\n"
)
AUTO_MAP = {"AutoConfig": "configuration_evil.EvilConfig"}


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


@dataclass(frozen=True)
class World:
    """The folders of the tests.

    Attributes:
        root: The folder that contains them.
        here: The working folder of the commands, with traps beside the data.
        traps: Files that must not be read, executed or unpickled.
    """

    root: Path

    @property
    def here(self) -> Path:
        return self.root / "here"

    @property
    def traps(self) -> Path:
        return self.root / "traps"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def forbidden(self) -> list[Path]:
        """The traps; images, data and models in the working folder are not traps."""
        names = ("evil_factory.py", "evil_package", "segformer", "resnet18", "Unet")
        return [self.traps, *(self.here / name for name in names)]

    def make(self) -> World:
        """Create the traps, two valid model files, an image and a data folder."""
        for folder in (self.here, self.traps, self.cache, self.root / "home"):
            folder.mkdir(parents=True)
        mark = f"open({str(self.root / 'mark')!r}, 'w').write('ran')\n"
        (self.here / "evil_factory.py").write_text(mark)
        (self.here / "evil_package").mkdir()
        (self.here / "evil_package" / "__init__.py").write_text(mark)
        for folder in (self.here / "segformer", self.here / "resnet18", self.traps / "folder"):
            folder.mkdir()
            about = {"model_type": "evil", "auto_map": AUTO_MAP, "architecture": "resnet18"}
            (folder / "config.json").write_text(json.dumps(about))
            (folder / "configuration_evil.py").write_text(mark + REMOTE)
        (self.traps / "bomb.pth").write_bytes(pickle.dumps({"x": Bomb(self.root / "mark")}))
        self._data()
        for name, model in (("ours", OURS), ("segformer", SEGFORMER)):
            save(self.root / f"{name}.safetensors", model)
        return self

    def _data(self) -> None:
        noise_folder(self.here / "data", 4, (32, 32), {1: "dog"})
        shutil.copy(self.here / "data" / "images" / "p0.png", self.here / "image.png")

    def hostile(self, base: str, changes: dict[str, Any], out: Path) -> Path:
        """Write a valid model file with a changed header."""
        content = (self.root / f"{base}.safetensors").read_bytes()
        out.write_bytes(change_header(content, lambda header: header | changes))
        return out


def save(path: Path, model: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = build_network(read_model_config(model), 2, 32)
    step = {"step": 0, "classes": ["cat"], "images": 3, "data": ["pets"], "method": "mib"}
    info = ModelInfo(
        classes=["background", "cat"],
        colors=[(0, 0, 0), (255, 0, 0)],
        steps=[2],
        history=[step],
        model={},
        crop=32,
        predict_mode="crop",
        config={},
    )
    save_model(path, network, info, {})


def headers(world: World, address: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the hostile headers by name: the valid file, and the changes to its header.

    Args:
        world: The traps.
        address: Address of a hub.
    """
    bomb, folder = str(world.traps / "bomb.pth"), str(world.traps / "folder")
    found: dict[str, tuple[str, dict[str, Any]]] = {}

    def add(family: str, base: str, *models: dict[str, Any]) -> None:
        for i, model in enumerate(models):
            found[f"{family} {i}"] = (base, {"model": model})

    def of_hf(options: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return the header of the valid file with more options."""
        return {**SEGFORMER, "options": SEGFORMER["options"] | options, **more}

    hf = {**TRANSFORMERS, "weights": "none"}
    python = {"kind": "external", "library": "python", "weights": "none"}
    smp = {"kind": "external", "library": "smp", "weights": "none"}
    tv = {"kind": "external", "library": "torchvision", "weights": "none"}
    trust = {"trust_remote_code": True}
    add(
        "python",
        "ours",
        {"kind": "python", "factory": "evil_factory:make"},
        {"kind": "python", "factory": "antigravity:fly"},
        {"kind": "python", "factory": "os:system", "options": {"command": "true"}},
        {**python, "name": "os.system"},
        {**python, "name": "evil_factory.make", "shapes": "x"},
    )
    add(
        "kind",
        "ours",
        *({"kind": kind} for kind in ("os.system", ["external"], "../../evil", None)),
    )
    add(
        "hf name",
        "segformer",
        *({**hf, "name": name} for name in (folder, "evil/repo", "../../../../escaped", "~/evil")),
        *({**hf, "name": name} for name in ("./segformer", "", "evil", "llama", "x\u0000y")),
        *({**hf, "name": name} for name in (f"{address}/evil/repo", "hf://evil/repo")),
        *({**hf, "name": name, "options": trust} for name in (folder, "evil/repo", "segformer")),
        {**SEGFORMER, "weights": bomb},
        {**SEGFORMER, "weights": "pretrained", "name": "evil/repo"},
        {**SEGFORMER, "name": ["segformer"]},
    )
    inner = {"model_type": "timm_backbone", "backbone": "resnet18"}
    evil = {"AutoModelForSemanticSegmentation": "evil/repo--configuration_evil.EvilModel"}
    add(
        "hf options",
        "segformer",
        of_hf(trust),
        of_hf({"auto_map": evil, **trust}),
        of_hf({"attn_implementation": "evil/kernel"}),
        of_hf({"_attn_implementation_internal": "evil/kernel"}),
        of_hf({"quantization_config": {"quant_method": "gptq"}}),
        of_hf({"_name_or_path": folder}),
        of_hf({"code_revision": "x"}),
        of_hf({"torch_dtype": "evil"}),
        of_hf({"backbone": "evil/repo"}),
        of_hf({"use_kernels": True}),
        of_hf({"__class__": "x"}),
        of_hf({"hidden_act": f"{address}/x"}),
        {**hf, "name": "upernet", "options": {"backbone": "evil/repo"}},
        {**hf, "name": "upernet", "options": {"use_pretrained_backbone": True}},
        *(
            {**hf, "name": "upernet", "options": {"backbone_config": inner | more}}
            for more in ({}, {"use_pretrained_backbone": True}, {"backbone": "hf-hub:evil/repo"})
        ),
        {**hf, "name": "upernet", "options": {"backbone_config": {"_name_or_path": folder}}},
        *(of_hf({"depths": value}) for value in (7, [], [[]], {}, "x", [1, 1, 1, -1], None)),
        of_hf({"num_attention_heads": [0, 0, 0, 0]}),
        of_hf({"num_encoder_blocks": 99}),
        {**SEGFORMER, "options": "x"},
    )
    add(
        "too large",
        "segformer",
        of_hf({"depths": [10**9] * 4}),
        of_hf({"depths": [4000] * 4}),
        of_hf({"depths": [1] * 10**5}),
        of_hf({"hidden_sizes": [4096] * 4}),
        of_hf({"decoder_hidden_size": 1e12}),
        of_hf({"patch_sizes": [4095] * 4}),
        {**hf, "name": "beit", "options": {"image_size": 4096, "patch_size": 1}},
        {**hf, "name": "data2vec-vision", "options": {"vocab_size": 10**18}},
        {**OURS, "backbone": "timm/vit_7b_patch16_dinov3"},
        {**OURS, "backbone": "timm/resnet10t", "decoder_channels": 8192},
        {**smp, "name": "Unet/resnext101_32x48d"},
        {**tv, "name": "deeplabv3_resnet101"},
        {**OURS, "decoder_channels": 10**9},
        {**OURS, "backbone": "resnet101"},
    )
    timm = {**OURS, "backbone": "timm/resnet10t"}
    overlays = [{"file": bomb}, {"url": f"{address}/x"}, {"hf_hub_id": "evil/repo"}]
    add(
        "timm",
        "ours",
        {**timm, "options": {"checkpoint_path": bomb}},
        *({**timm, "options": {"pretrained": True, "pretrained_cfg_overlay": o}} for o in overlays),
        {**timm, "pretrained": True},
        *({**timm, "weights": weights} for weights in (bomb, "imagenet", "evil/repo")),
        *({**OURS, "backbone": f"timm/local-dir:{folder}"}, {**OURS, "backbone": f"timm/{bomb}"}),
        *({**OURS, "backbone": f"timm/{n}"} for n in ("hf-hub:evil/repo", "", "resnet10t.evil")),
    )
    add(
        "smp and torchvision",
        "ours",
        *(
            {**smp, "name": f"Unet/{encoder}"}
            for encoder in ("tu-hf-hub:evil/repo", f"tu-local-dir:{folder}", "tu-", "../resnet18")
        ),
        {**smp, "name": "Unet/tu-resnet18", "options": {"checkpoint_path": bomb}},
        {**smp, "name": "Unet/mobilenet_v2", "weights": bomb},
        {**smp, "name": "evil_factory/mobilenet_v2"},
        {**tv, "name": "lraspp_mobilenet_v3_large", "options": {"weights_backbone": "DEFAULT"}},
        *({**tv, "name": name} for name in ("resnet18", "evil_factory", folder)),
    )
    add(
        "ours",
        "ours",
        *({**OURS, "weights": weights} for weights in (bomb, "imagenet", "evil/repo", folder)),
        *({**OURS, "backbone": name} for name in ("evil_factory", "os:system", folder)),
        {**OURS, "factory": "evil_factory:make"},
    )
    add(
        "keys of external networks",
        "segformer",
        {**SEGFORMER, "head": ["__class__"]},
        {**SEGFORMER, "stages": ["os.system"]},
        {**SEGFORMER, "background": 100_000},
        {**SEGFORMER, "pixels": {"mean": [1e9, 0, 0], "std": [1, 1, 1]}},
    )
    deep: Any = 1
    for _ in range(50):
        deep = {"x": [deep]}
    others: list[tuple[str, dict[str, Any]]] = [
        ("segformer", {"model": of_hf({"depths": deep})}),
        ("ours", {"model": []}),
        ("ours", {"model": "evil_factory"}),
        ("ours", {"steps": [65_536], "model": OURS}),
        ("ours", {"crop": 10**9}),
        ("ours", {"classes": ["background", "x" * 5000]}),
        ("segformer", {"steps": [1, 1]}),
        ("ours", {"predict_mode": "evil_factory:make"}),
    ]
    return found | {f"header {i}": header for i, header in enumerate(others)}

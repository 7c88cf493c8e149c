"""A folder full of traps, and what a hostile file may say to lead into them."""

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
    """Runs code where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (str(self.mark), "w")


@dataclass(frozen=True)
class World:
    """Where things are.

    Attributes:
        root: All of it.
        here: The folder that commands are called in, with traps beside the data.
        traps: Files that nobody may read, execute or unpickle.
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
        """The traps; pictures, data and models in the working folder are no traps."""
        names = ("evil_factory.py", "evil_package", "segformer", "resnet18", "Unet")
        return [self.traps, *(self.here / name for name in names)]

    def make(self) -> World:
        """Lay the traps, and write two sound model files, a image and a data folder."""
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
        """Write a sound model file with another header."""
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
    """Return the hostile headers by name: which sound file they stand in, and what is changed.

    Args:
        world: Where the traps are.
        address: Of a hub that listens.
    """
    bomb, folder = str(world.traps / "bomb.pth"), str(world.traps / "folder")
    found: dict[str, tuple[str, dict[str, Any]]] = {}

    def add(family: str, base: str, *models: dict[str, Any]) -> None:
        for i, model in enumerate(models):
            found[f"{family} {i}"] = (base, {"model": model})

    def of_hf(options: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return the header of the sound file, with more options: its tensors fit."""
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
        {"kind": "python", "factory": "evil_package:make"},
        {"kind": "python", "factory": "antigravity:fly"},
        {"kind": "python", "factory": "this:make"},
        {"kind": "python", "factory": "os:system", "options": {"command": "true"}},
        {"kind": "python", "factory": "timm.models.resnet:resnet18", "options": {}},
    )
    add(
        "object or unknown kind",
        "ours",
        {**python, "name": "os.system"},
        {**python, "name": "evil_factory.make", "shapes": "x"},
        {"kind": "os.system"},
        {"kind": "evil_factory"},
        {"kind": ["external"]},
        {"kind": {"external": 1}},
        {"kind": "../../evil_factory"},
        {"kind": None},
    )
    add(
        "hf name",
        "segformer",
        *({**hf, "name": name} for name in (folder, "evil/repo", "../../../../escaped", "~/evil")),
        *({**hf, "name": name} for name in (str(world.root / "escaped"), "./segformer", "", "/")),
        *({**hf, "name": name} for name in ("evil", "llama", "bert", "timm_backbone", "x\u0000y")),
        *(
            {**hf, "name": name}
            for name in (f"{address}/evil/repo", "hf://evil/repo", "evil/repo@x")
        ),
        *({**hf, "name": name, "options": trust} for name in (folder, "evil/repo", "segformer")),
        {**SEGFORMER, "weights": "pretrained"},
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
        of_hf({"auto_map": evil}),
        of_hf({"auto_map": evil, **trust}),
        of_hf({"auto_map": {"AutoConfig": "evil.EvilConfig"}}),
        of_hf({"attn_implementation": "flash_attention_2"}),
        of_hf({"attn_implementation": "evil/kernel"}),
        of_hf({"_attn_implementation": "evil/kernel"}),
        of_hf({"_attn_implementation_internal": "evil/kernel"}),
        of_hf({"experts_implementation": "evil/kernel"}),
        of_hf({"quantization_config": {"quant_method": "gptq"}}),
        of_hf({"_name_or_path": folder}),
        of_hf({"name_or_path": folder}),
        of_hf({"_commit_hash": "x"}),
        of_hf({"code_revision": "x"}),
        of_hf({"dtype": "os"}),
        of_hf({"torch_dtype": "evil"}),
        of_hf({"backbone": "evil/repo"}),
        of_hf({"use_kernels": True}),
        of_hf({"id2label": {"0": "x"}}),
        of_hf({"__class__": "x"}),
        of_hf({"hidden_act": "evil/act"}),
        of_hf({"hidden_act": f"{address}/x"}),
        of_hf({"hidden_act": "no_such_act"}),
        {**hf, "name": "upernet", "options": {"backbone": "evil/repo"}},
        {**hf, "name": "upernet", "options": {"use_pretrained_backbone": True}},
        {**hf, "name": "upernet", "options": {"backbone_config": inner}},
        *(
            {**hf, "name": "upernet", "options": {"backbone_config": inner | more}}
            for more in ({"use_pretrained_backbone": True}, {"backbone": "hf-hub:evil/repo"})
        ),
        {**hf, "name": "upernet", "options": {"backbone_config": {"model_type": "evil"}}},
        {**hf, "name": "upernet", "options": {"backbone_config": {"model_type": "segformer/x"}}},
        {**hf, "name": "upernet", "options": {"backbone_config": {"_name_or_path": folder}}},
        {**hf, "name": "dpt", "options": {"is_hybrid": True, "backbone_config": None}},
    )
    add(
        "hf of the wrong type",
        "segformer",
        *(of_hf({"depths": value}) for value in (7, [], [[]], {}, "x", [1, 1, 1, -1], None, [0.5])),
        of_hf({"hidden_sizes": [8, [], 32, 64]}),
        of_hf({"hidden_sizes": [0, 0, 0, 0]}),
        of_hf({"num_attention_heads": [0, 0, 0, 0]}),
        of_hf({"sr_ratios": [0, 0, 0, 0]}),
        of_hf({"num_encoder_blocks": 99}),
        of_hf({"hidden_act": 7}),
        of_hf({"drop_path_rate": "x"}),
        {**SEGFORMER, "options": []},
        {**SEGFORMER, "options": "x"},
    )
    add(
        "too large",
        "segformer",
        of_hf({"depths": [10**9] * 4}),
        of_hf({"depths": [60_000] * 4}),
        of_hf({"depths": [4000] * 4}),
        of_hf({"depths": [1] * 10**5}),
        of_hf({"hidden_sizes": [10**9] * 4}),
        of_hf({"hidden_sizes": [4096] * 4}),
        of_hf({"decoder_hidden_size": 10**12}),
        of_hf({"decoder_hidden_size": 1e12}),
        of_hf({"mlp_ratios": [4000] * 4}),
        of_hf({"patch_sizes": [4095] * 4}),
        of_hf({"num_channels": 4000}),
        {**hf, "name": "beit", "options": {"image_size": 4096, "patch_size": 1}},
        {**hf, "name": "beit", "options": {"num_hidden_layers": 4000}},
        {**hf, "name": "data2vec-vision", "options": {"vocab_size": 10**18}},
        {**hf, "name": "dpt", "options": {"hidden_size": 4096, "num_hidden_layers": 96}},
        {**hf, "name": "mobilenet_v2", "options": {"depth_multiplier": 4000.0}},
        {**OURS, "backbone": "timm/eva_giant_patch14_560"},
        {**OURS, "backbone": "timm/vit_7b_patch16_dinov3"},
        {**OURS, "backbone": "timm/resnet10t", "decoder_channels": 8192},
        {**smp, "name": "Unet/mit_b5"},
        {**smp, "name": "Unet/resnext101_32x48d"},
        {**smp, "name": "Unet/resnet18", "options": {"encoder_depth": 3}},
        {**tv, "name": "deeplabv3_resnet101"},
        {**OURS, "decoder_channels": 8192},
        {**OURS, "decoder_channels": 10**9},
        {**OURS, "backbone": "resnet101"},
    )
    timm = {**OURS, "backbone": "timm/resnet10t"}
    overlays = [{"file": bomb}, {"url": f"{address}/x"}, {"hf_hub_id": "evil/repo"}]
    add(
        "timm",
        "ours",
        {**timm, "options": {"checkpoint_path": bomb}},
        {**timm, "options": {"pretrained": True}},
        *({**timm, "options": {"pretrained": True, "pretrained_cfg_overlay": o}} for o in overlays),
        {**timm, "pretrained": True},
        {**timm, "checkpoint_path": bomb},
        *({**timm, "weights": weights} for weights in (bomb, "imagenet", "evil/repo", folder)),
        *(
            {**timm, "backbone": f"timm/{name}"}
            for name in (
                *(f"{scheme}:{folder}" for scheme in ("local-dir", "hf-hub", "hf_hub")),
                *("hf-hub:evil/repo", "evil/resnet10t", bomb, "", "."),
                *("resnet10t.evil", "resnet10t.evil/repo", "resnet18"),
            )
        ),
    )
    net = {**smp, "name": "Unet/mobilenet_v2"}
    add(
        "smp",
        "ours",
        *(
            {**smp, "name": f"Unet/{encoder}"}
            for encoder in (
                *("tu-hf-hub:evil/repo", f"tu-local-dir:{folder}", "tu-evil/resnet18", "tu-"),
                *("../resnet18", "resnet18", ""),
            )
        ),
        {**smp, "name": "Unet/tu-resnet18", "options": {"checkpoint_path": bomb}},
        {**net, "options": {"encoder_weights": "imagenet"}},
        *({**net, "weights": weights} for weights in ("imagenet", bomb, "evil/repo")),
        *({**smp, "name": f"{n}/mobilenet_v2"} for n in ("evil_factory", "__class__", folder)),
    )
    lraspp = {**tv, "name": "lraspp_mobilenet_v3_large"}
    add(
        "torchvision",
        "ours",
        lraspp,
        {**lraspp, "weights": "imagenet"},
        {**lraspp, "options": {"weights_backbone": "DEFAULT"}},
        *(
            {**tv, "name": name}
            for name in ("resnet18", "evil_factory", folder, "quantized_resnet18")
        ),
    )
    add(
        "ours",
        "ours",
        *({**OURS, "weights": weights} for weights in (bomb, "imagenet", "evil/repo", folder)),
        *({**OURS, "backbone": name} for name in ("evil_factory", "os:system", folder, "resnet18")),
        {**OURS, "factory": "evil_factory:make"},
    )
    add(
        "foreign keys",
        "segformer",
        {**SEGFORMER, "head": ["../../evil"]},
        {**SEGFORMER, "head": ["__class__"]},
        {**SEGFORMER, "stages": ["os.system"]},
        {**SEGFORMER, "background": 100_000},
        {**SEGFORMER, "pixels": {"mean": [1e9, 0, 0], "std": [1, 1, 1]}},
    )
    deep: Any = 1
    for _ in range(50):
        deep = {"x": [deep]}
    found["header 0"] = ("segformer", {"model": of_hf({"depths": deep})})
    found["header 1"] = ("ours", {"model": []})
    found["header 2"] = ("ours", {"model": "evil_factory"})
    found["header 3"] = ("ours", {"model": {}})
    found["header 4"] = ("ours", {"steps": [65_536], "model": OURS})
    found["header 5"] = ("ours", {"crop": 10**9})
    found["header 6"] = ("ours", {"classes": ["background", "x" * 5000]})
    found["header 7"] = ("segformer", {"steps": [1, 1]})
    found["header 8"] = ("ours", {"predict_mode": "evil_factory:make"})
    return found

"""The real models that benchmarks and campaigns compile, materialised into a scratch folder."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy.typing as npt
import onnx
import onnx.numpy_helper


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model: skeleton file stem and the symbol bindings used here."""

    name: str
    stem: str
    symbols: tuple[tuple[str, int], ...] = ()


ZOO = (
    ZooModel("resnet18", "resnet18"),
    ZooModel("resnet50", "resnet50_v1_5", (("N", 1),)),
    ZooModel("mobilenet_v2", "mobilenet_v2", (("N", 1),)),
    ZooModel("vgg16", "vgg16", (("N", 1),)),
    ZooModel("densenet121", "densenet121", (("N", 1),)),
    ZooModel("googlenet", "googlenet", (("N", 1),)),
    ZooModel("bert_base_s128", "bert_base_s128"),
    ZooModel("vit_base", "vit_base_patch16_224"),
    ZooModel("swin_tiny", "swin_tiny"),
    ZooModel("dlrm", "dlrm", (("N", 16),)),
    ZooModel("nerf", "nerf_p4096"),
    ZooModel("lstm", "lstm_t32", (("N", 1),)),
    ZooModel("unet", "unet_resnet34"),
    ZooModel("nafnet", "nafnet_w32"),
    ZooModel("resnet18_qdq_int8", "resnet18_qdq_int8"),
    ZooModel("resnet50_fp16", "resnet50_fp16", (("N", 1),)),
    ZooModel("ssdlite320_nms", "ssdlite320_nms"),
)

SYMBOLS: Mapping[str, tuple[tuple[str, int], ...]] = MappingProxyType({
    **{model.stem: model.symbols for model in ZOO},
    **dict.fromkeys(("alexnet", "dlrm", "mlp_mnist"), (("N", 1),)),
    "bert_base_dyn": (("N", 1), ("S", 128)),
    "basic_pitch_nmp": (("unk__749", 1),),
    "tinybert": (("batch", 1), ("sequence", 32)),
})  # fmt: skip
"""Values of symbolic dimensions by file stem; models that are not listed have none."""


def every_model() -> tuple[ZooModel, ...]:
    """Every model of the folder, under its file's name, at the smallest batch."""
    folder = skeleton_folder()
    stems = [p.name.removesuffix(".skel.onnx.gz") for p in folder.glob("*.skel.onnx.gz")]
    stems += [p.stem for p in (folder / "third_party").glob("*.onnx")]
    return tuple(ZooModel(stem, stem, SYMBOLS.get(stem, ())) for stem in sorted(stems))


def skeleton_folder() -> Path:
    """Where skeletons and materialize.py are: TILEWRIGHT_TEST_MODELS, or beside the checkout."""
    configured = os.environ.get("TILEWRIGHT_TEST_MODELS")
    here = Path(__file__).resolve().parent.parent
    return Path(configured) if configured else here.parent / "shared" / "models"


def _materializer(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("materialize", folder / "materialize.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(folder / "materialize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def materialized(model: ZooModel, scratch: Path) -> Path:
    """Path of the full model: written once into `scratch`, unless it comes with its weights."""
    whole = skeleton_folder() / "third_party" / f"{model.stem}.onnx"
    if whole.exists():
        return whole
    target = scratch / f"{model.stem}.onnx"
    if not target.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        folder = skeleton_folder()
        proto = _materializer(folder).materialize(str(folder / f"{model.stem}.skel.onnx.gz"))
        temporary = target.with_suffix(".part")
        temporary.write_bytes(proto.SerializeToString())
        temporary.replace(target)
    return target


def sample_inputs(model: onnx.ModelProto, name: str) -> dict[str, npt.NDArray[Any]]:
    """Inputs by the recipes of a model, from a name."""
    tensors = _materializer(skeleton_folder()).sample_inputs(model, name)
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}

"""A bare .onnx file whose weights lie in files beside it, as the zip bundle that says the same.

Every stage takes a bundle: its members are found by name only, never by path.  So this is the one
place that follows a model's file names, and none of them may leave the model's folder.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEY = b"location"
"""External data name their file under this key."""


@contextmanager
def with_external_data(model: Path) -> Iterator[Path]:
    """The model itself, or a temporary bundle of it and the files it names.

    Raises:
        ModelError: TW-MODEL-010 with a finding for every file that is missing, or whose name leads
            out of the model's folder.

    Cost: one search of the file; with external data one copy of them.
    """
    names = external_files(model)
    if not names:
        yield model
        return
    with TemporaryDirectory(prefix="tilewright-model-") as folder:
        bundle = Path(folder) / f"{model.stem}.zip"
        with zipfile.ZipFile(bundle, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, source in {model.name: model, **_checked(model.parent, names)}.items():
                member = zipfile.ZipInfo(name, _EPOCH)
                with source.open("rb") as data, archive.open(
                    member, "w", force_zip64=True
                ) as target:  # fmt: skip
                    while chunk := data.read(1 << 22):
                        target.write(chunk)
        yield bundle


def external_files(model: Path) -> list[str]:
    """Names of the files that initializers of a bare model lie in, each once; not checked."""
    import mmap

    if model.suffix == ".zip" or zipfile.is_zipfile(model) or not model.stat().st_size:
        return []
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(_KEY) < 0:
            return []
    import onnx  # 0.2 s to import, for a file that says it has such data
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

    try:
        proto = onnx.load(model, load_external_data=False)
    except DecodeError:
        return []  # loading says what is wrong with it
    return list(
        dict.fromkeys(
            entry.value
            for tensor in proto.graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        )
    )


def _checked(folder: Path, names: list[str]) -> dict[str, Path]:
    from worker.compiler.errors import Finding, ModelError
    from worker.compiler.frontend.bundle_files import unsafe_name

    root = folder.resolve()
    found: dict[str, Path] = {}
    findings: list[Finding] = []
    for name in names:
        path = root / name
        why = unsafe_name(name)
        if why is None and not path.resolve().is_relative_to(root):
            why = "it is a link out of the model's folder"
        if why is None and not path.is_file():
            why = "there is no such file beside the model"
        if why is None:
            found[name] = path
        else:
            findings.append(Finding("TW-MODEL-010", f"external data in {name!r}: {why}"))
    if findings:
        raise ModelError("TW-MODEL-010", findings[0].message, findings=tuple(findings))
    return found

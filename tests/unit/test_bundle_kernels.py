"""What runs of a bundle is generated here: other text is compared, refused or left alone."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_toys import BUILD_DIR
from test_bundle import contents, expected, inputs

from worker.compiler.errors import InputError
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.package.build import build_library
from worker.compiler.package.bundle import write_bundle
from worker.compiler.package.runtime import Origin, load_bundle

Members = dict[str, bytes]
Change = Callable[[Members], None]


def tampered(path: Path, change: Change, **manifest_changes: Any) -> Path:
    """The toy bundle with a change, every digest made right again."""
    write_bundle(path, contents())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    manifest = json.loads(members.pop("manifest.json"))
    for name, value in manifest_changes.items():
        manifest[name] = value(manifest[name])
    for row in manifest["members"]:
        data = members.get(row["name"], b"")
        row["sha256"], row["size_bytes"] = sha256(data).hexdigest(), len(data)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, data)
    return path


def sub(name: str, old: bytes, new: bytes) -> Change:
    def change(members: Members) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new, 1)

    return change


def _wrong_instructions(members: Members) -> None:
    program = decode_program(members["program.bin"])
    rows = program.units[0].instructions.copy()
    rows["cycles"] += 1
    units = (replace(program.units[0], instructions=rows), *program.units[1:])
    members["program.bin"] = encode_program(replace(program, units=units))


def _other_machine(members: Members) -> None:
    machine = json.loads(members["hardware.json"])
    machine["levels"][1]["capacity_bytes"] *= 2
    members["hardware.json"] = json.dumps(machine).encode()


def test_kernels_of_these_versions_are_compared(tmp_path: Path) -> None:
    loaded = load_bundle(tampered(tmp_path / "b.twb", lambda _: None), BUILD_DIR)
    assert loaded.origin is Origin.COMPARED


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (sub("kernels/tw_first.c", b"{", b"{ "), "TW-RUN-005", "kernel tw_first: its C text"),
        (sub("schedules/tw_first.txt", b"cycles=", b"cycles=1"), "", ""),  # decides no code
        (sub("schedules/tw_second.txt", b"move ", b"seq "), "TW-RUN-005", "kernel tw_second"),
        (sub("schedules/tw_first.txt", b"schedule", b"\xff"), "TW-RUN-001", "is not text"),
        (_wrong_instructions, "TW-RUN-005", "kernel tw_first: its instructions"),
        (_other_machine, "TW-RUN-001", "digest"),
        (sub("hardware.json", b'"levels"', b'"lev"'), "TW-RUN-001", "machine is not valid"),
        (sub("kernels/tilewright_rt.h", b"#", b"\n#"), "TW-RUN-001", "tilewright_rt.h is not that"),
    ],
)
def test_what_does_not_agree_is_refused(
    tmp_path: Path, change: Change, code: str, words: str
) -> None:
    path = tampered(tmp_path / "b.twb", change)
    if not code:
        load_bundle(path, BUILD_DIR)
        return
    with pytest.raises(InputError) as caught:
        load_bundle(path, BUILD_DIR)
    assert caught.value.code == code
    assert words in caught.value.message


@pytest.mark.parametrize("version", ["ir", "lower", "codegen"])
def test_kernels_of_other_versions_are_made_here(tmp_path: Path, version: str) -> None:
    """The text in the bundle says something else, and does not run."""
    path = tampered(
        tmp_path / "b.twb",
        sub("kernels/tw_first.c", b"{", b"{ return;"),
        toolchain=lambda made: {**made, version: "0"},
    )
    loaded = load_bundle(path, BUILD_DIR)
    assert loaded.origin is Origin.REGENERATED
    outputs = loaded.runner.run(inputs())
    np.testing.assert_allclose(outputs["s"], expected()[0], rtol=1e-5, atol=1e-6)
    trusted = load_bundle(path, BUILD_DIR, trust=True)
    assert trusted.origin is Origin.TRUSTED
    assert not np.allclose(trusted.runner.run(inputs())["d"], outputs["d"], rtol=1e-3)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", ["../../escape", "/tmp/tw-escape", "a b", "", "x" * 200])
def test_a_kernel_is_named_like_a_function(tmp_path: Path, name: str, trust: bool) -> None:
    """Names become files of the build folder."""

    def rename(members: Members) -> None:
        graph = members["model/graph.json"].decode().replace("tw_first", name)
        members["model/graph.json"] = graph.encode()

    def renamed(rows: Any) -> Any:
        return json.loads(json.dumps(rows).replace("tw_first", name))

    path = tampered(tmp_path / "b.twb", rename, provenance=renamed)
    with pytest.raises(InputError, match="is no name of a kernel") as caught:
        load_bundle(path, tmp_path / "deep" / "build", trust=trust)
    assert caught.value.code == "TW-RUN-001"
    with pytest.raises(InputError, match="is no name of a kernel"):
        build_library({name: "int x;"}, tmp_path / "deep" / "build")
    assert [p.name for p in tmp_path.iterdir()] == ["b.twb"]

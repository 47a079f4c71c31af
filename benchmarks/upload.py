"""Upload speed over loopback and what it does to the server's memory.

    python -m benchmarks.upload [--mib 1024] [--repeat 3] [--json]

A real server (`tilewright serve`, its own process and data directory) receives a zip bundle: a
valid ONNX model whose single weight is external data of the given size.  Two ways: one POST
/v1/models with the bundle as raw body, and a resumable upload in 16 MiB chunks with its final
check.  An upload ends when the server has answered, that is with the bytes hashed, synced to disk
and registered.  Each sample has other bytes (the zip comment differs), so nothing is answered from
what is stored already.

The reference, alternating with the uploads, is one thread that reads the same file in 1 MiB pieces,
hashes them with sha256, writes them to another file and syncs it.  Both sides write to the same
disk.  The server's memory growth is the peak of its resident set during an upload over the resident
set before the first one.  A third row shows the client library.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.server import Server, running

MIB = 1 << 20
TARGET_MB_PER_S = 150.0
TARGET_GROWTH_MB = 64.0
CHUNK_BYTES = 16 * MIB
_COLUMNS = 1024
_COMMENT_BYTES = 16


def write_bundle(path: Path, mib: int) -> None:
    """A zip (stored) with a MatMul model and `mib` MiB of external weights."""
    import onnx
    from onnx import TensorProto, helper

    rows = mib * MIB // (4 * _COLUMNS)
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[rows, _COLUMNS],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(mib * MIB))):
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "upload",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _COLUMNS])],
        [weight],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=onnx.IR_VERSION_2023_5_5
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as bundle:
        bundle.writestr("model.onnx", model.SerializeToString())
        block = os.urandom(MIB)
        with bundle.open("weights.bin", "w", force_zip64=True) as member:
            for _ in range(mib):
                member.write(block)
        bundle.comment = b"0" * _COMMENT_BYTES


def make_unique(path: Path, number: int) -> None:
    """Give the bundle other bytes without changing what it means."""
    with path.open("r+b") as file:
        file.seek(-_COMMENT_BYTES, os.SEEK_END)
        file.write(f"{number:0{_COMMENT_BYTES}d}".encode())


def copy_and_hash(source: Path, target: Path) -> None:
    """The reference: copy, sha256, sync."""
    digest = sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(MIB):
            digest.update(piece)
            writer.write(piece)
        writer.flush()
        os.fsync(writer.fileno())
    target.unlink()


def _answer(connection: http.client.HTTPConnection) -> dict[str, Any]:
    response = connection.getresponse()
    body = response.read()
    if response.status not in (200, 201):
        raise RuntimeError(f"{response.status}: {body[:500]!r}")
    document = json.loads(body)
    assert isinstance(document, dict)
    return document


def upload_raw(server: Server, path: Path) -> dict[str, Any]:
    """One POST with the file as body."""
    connection = http.client.HTTPConnection(*server.address, blocksize=MIB)
    with path.open("rb") as body:
        connection.request(
            "POST", "/v1/models?name=upload", body=body,
            headers={"Content-Type": "application/zip",
                     "Content-Length": str(path.stat().st_size)},
        )  # fmt: skip
        document = _answer(connection)
    connection.close()
    return document


def upload_chunked(server: Server, path: Path) -> dict[str, Any]:
    """Start, append 16 MiB at a time on one connection, finish."""
    size = path.stat().st_size
    connection = http.client.HTTPConnection(*server.address, blocksize=MIB)
    connection.request(
        "POST", "/v1/uploads", body=json.dumps({"name": "upload", "size_bytes": size}),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    upload = _answer(connection)["id"]
    with path.open("rb") as file:
        offset = 0
        while piece := file.read(CHUNK_BYTES):
            connection.request(
                "PATCH", f"/v1/uploads/{upload}", body=piece,
                headers={"Content-Type": "application/octet-stream", "Upload-Offset": str(offset)},
            )  # fmt: skip
            offset = _answer(connection)["offset"]
    connection.request("PUT", f"/v1/uploads/{upload}")
    document = _answer(connection)
    connection.close()
    return document


def upload_library(server: Server, path: Path) -> dict[str, Any]:
    """What `tilewright compile --server` does."""
    from service.client import Client

    with Client(server.url) as client:
        return dict(client.upload_model(path))


WAYS: tuple[tuple[str, Callable[[Server, Path], dict[str, Any]]], ...] = (
    ("raw", upload_raw),
    ("resumable", upload_chunked),
    ("library", upload_library),
)


def _stored(server: Server, digest: str) -> Path:
    return next((server.data_dir / "blobs").glob(f"cas/sha256/*/*/{digest}"))


def measure(mib: int, repeat: int, scratch: Path) -> dict[str, Any]:
    """Alternate the reference and the ways of uploading, `repeat` times."""
    bundle = scratch / "bundle.zip"
    write_bundle(bundle, mib)
    size_mb = bundle.stat().st_size / 1e6
    speeds: dict[str, list[float]] = {name: [] for name in ("copy", *dict(WAYS))}
    growth: dict[str, float] = dict.fromkeys(dict(WAYS), 0.0)
    number = 0
    with running(scratch / "server") as server:
        warm_up = scratch / "small.zip"
        write_bundle(warm_up, 1)
        for _, send in WAYS:
            number += 1
            make_unique(warm_up, number)
            send(server, warm_up)
        before = server.memory_mb("VmRSS")
        for _ in range(repeat):
            started = time.perf_counter()
            copy_and_hash(bundle, scratch / "copy")
            speeds["copy"].append(size_mb / (time.perf_counter() - started))
            for name, send in WAYS:
                number += 1
                make_unique(bundle, number)
                digest = _file_digest(bundle)
                server.forget_peak()
                started = time.perf_counter()
                model = send(server, bundle)
                speeds[name].append(size_mb / (time.perf_counter() - started))
                growth[name] = max(growth[name], server.memory_mb("VmHWM") - before)
                if model["sha256"] != digest:
                    raise RuntimeError("the server stored other bytes than were sent")
                _stored(server, digest).unlink()  # room for the next sample
    return _row(size_mb, speeds, growth)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = sha256()
        while piece := file.read(MIB):
            digest.update(piece)
    return digest.hexdigest()


def _row(
    size_mb: float, speeds: dict[str, list[float]], growth: dict[str, float]
) -> dict[str, Any]:
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    row: dict[str, Any] = {"size_mb": size_mb, "copy_mb_per_s": middle["copy"]}
    for name, _ in WAYS:
        row[f"{name}_mb_per_s"] = middle[name]
        row[f"{name}_ratio_to_copy"] = statistics.median(
            own / copy for own, copy in zip(speeds[name], speeds["copy"], strict=True)
        )
        row[f"{name}_growth_mb"] = growth[name]
    row["passed"] = all(
        row[f"{name}_mb_per_s"] >= TARGET_MB_PER_S and row[f"{name}_growth_mb"] <= TARGET_GROWTH_MB
        for name in ("raw", "resumable")
    )
    return row


def render(row: dict[str, Any]) -> str:
    """A few lines of text."""
    lines = [
        f"upload of {row['size_mb']:.0f} MB over loopback;"
        f" reference (copy, sha256, sync): {row['copy_mb_per_s']:.0f} MB/s"
    ]
    lines += [
        f"  {name:10} {row[f'{name}_mb_per_s']:6.0f} MB/s, {row[f'{name}_ratio_to_copy']:.2f} x the"
        f" reference; server memory +{row[f'{name}_growth_mb']:.0f} MB"
        for name, _ in WAYS
    ]
    lines.append(
        f"targets (raw, resumable): >= {TARGET_MB_PER_S:g} MB/s, growth <= {TARGET_GROWTH_MB:g} MB:"
        f" {'met' if row['passed'] else 'MISSED'}"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder for 4 x the size (default: temporary)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        row = measure(args.mib, args.repeat, Path(folder))
    sys.stdout.write((json.dumps(row) if args.json else render(row)) + "\n")
    return 0 if row["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

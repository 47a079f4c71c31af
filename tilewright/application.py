"""A bundle's library in this process: ONNX Runtime runs the model, the library its regions."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from tilewright.options import PathLike
from worker.compiler.errors import InputError

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""Numbers of ELF, and what `platform.machine` calls them."""
_REFUSAL = re.compile(r"(TW-LIB-\d{3}) at (\S+): (.*)", re.DOTALL)


class Application:
    """The folder that `Result.build` or `tilewright build` wrote.

    Its library is native code: open only what you built, or trust.

    Example:
        >>> import numpy as np, tilewright as tw
        >>> session = tw.load("out").build("app").session()
        >>> session.run(None, {"x": np.zeros((1, 3, 12, 12), np.float32)})[0].shape
        (1, 10)
    """

    def __init__(self, folder: PathLike, digest: str | None = None) -> None:
        self.folder = Path(folder)
        self.digest = digest
        """Of the bundle that it has to come from; None: of any."""

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.folder / "libmodel.so"

    @property
    def host_model(self) -> Path:
        """The model with a custom operator for each region."""
        return self.folder / "host.onnx"

    @property
    def header(self) -> Path:
        """The library's C interface."""
        return self.folder / "tilewright.h"

    def session(self, options: Any = None) -> Any:
        """A new `onnxruntime.InferenceSession` on `host_model`, with the library registered.

        `options` are `onnxruntime.SessionOptions`, to which the library is added; without them,
        products of integers are exact on every processor, and all else is the default.  Any number
        of sessions and threads run at once.  A region reads and writes tensors where they lie.

        Raises:
            InputError: TW-LIB-002, the library is for another architecture or processor; -003, it
                is of another bundle than the model or `digest`; -004, it is damaged; -009, this
                ONNX Runtime is too old.

        Cost: loading the model, and one SHA-256 over the weights in the process's first session.
        """
        import onnxruntime

        self._require_own_architecture()
        self._require_digest()
        wanted = options
        if options is None:
            wanted = onnxruntime.SessionOptions()
            # What its optimiser fuses to u8 by i8 saturates on x86-64 without VNNI (decision 0100).
            wanted.add_session_config_entry("session.x64quantprecision", "1")
        try:
            wanted.register_custom_ops_library(str(self.library))
            return onnxruntime.InferenceSession(
                str(self.host_model), wanted, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises its own types from C++
            found = _REFUSAL.search(str(error))
            if found is None:
                raise
            raise InputError(found[1], found[3].strip(), pointer=found[2]) from error

    def _require_own_architecture(self) -> None:
        try:
            with self.library.open("rb") as file:
                head = file.read(20)
        except OSError as error:
            raise InputError("TW-CLI-001", f"{self.library} cannot be read: {error}") from error
        if len(head) < 20 or head[:4] != b"\x7fELF":
            raise InputError(
                "TW-LIB-004", f"{self.library} is no shared library", pointer="/library"
            )
        number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
        built, own = _MACHINES.get(number, f"ELF machine {number}"), platform.machine()
        if built != own:
            raise InputError(
                "TW-LIB-002", f"the library is for {built}, this machine is {own}",
                pointer="/library/architecture", limit=own, actual=built,
            )  # fmt: skip

    def _require_digest(self) -> None:
        """The model in the folder is of the bundle asked for; the library checks the model."""
        if self.digest is None:
            return
        import onnx

        for node in onnx.load(str(self.host_model)).graph.node:
            given = {a.name: a.s.decode() for a in node.attribute if a.name == "digest"}
            if node.domain == "tilewright" and given.get("digest") != self.digest:
                raise InputError(
                    "TW-LIB-003",
                    f"{self.host_model} is of another bundle",
                    pointer=f"/nodes/{node.name.rpartition('/')[2]}/digest",
                    limit=self.digest,
                    actual=given.get("digest"),
                )

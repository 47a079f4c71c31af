"""What an upload is, by its first bytes: what cannot be a model is refused before the rest comes.

An ONNX file is one protobuf message, a sequence of tagged fields.  The tags of its own fields are
few, so a page, a picture, an archive or a text shows itself within a few bytes.  Nothing is parsed
beyond that: whether it is a good model is for the job's sandbox.
"""

from __future__ import annotations

from typing import Protocol

from service.errors import ServiceError

LOOK_BYTES = 512
"""How far the first bytes are read; well behind the tags that tell."""
ZIP_HEAD = b"PK\x03\x04"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MODEL_FIELDS = {
    1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: _BYTES, 8: _BYTES,
    14: _BYTES, 20: _BYTES, 25: _BYTES, 26: _BYTES,
}  # fmt: skip
"""Wire type by field of onnx.ModelProto."""
_GRAPH, _OPSET = 7, 8
_INNER_FIELDS = {
    _GRAPH: {1: _BYTES, 2: _BYTES, 5: _BYTES, 10: _BYTES, 11: _BYTES, 12: _BYTES, 13: _BYTES,
             14: _BYTES, 15: _BYTES, 16: _BYTES},
    _OPSET: {1: _BYTES, 2: _VARINT},
}  # fmt: skip
"""The same of the messages that every model holds."""
_MAX_VARINT = 10
"""Bytes of the longest number of protobuf."""
_BREAKS_OFF = "it breaks off within a field"
_MAGIC = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x1f\x8b", "gzip data"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"PK", "an empty or broken zip archive"),
    (b"\x93NUMPY", "an .npy array"),
    (b"\x80\x02", "a pickle, as torch.save writes it"),
    (b"<", "HTML or XML"),
    (b"{", "JSON"),
    (b"[", "JSON"),
)


class NotAModel(ServiceError):
    """The bytes cannot be what was announced; the connection ends, so the rest is not sent."""

    code = "TW-MODEL-001"

    def __init__(self, message: str, *, limit: str, actual: str, code: str | None = None) -> None:
        close = {"Connection": "close"}
        super().__init__(message, code=code, limit=limit, actual=actual, headers=close)


def look_at_model(head: bytes, *, is_whole: bool) -> None:
    """Refuse what is neither the beginning of an ONNX file nor of a zip bundle.

    Args:
        head: the first bytes, LOOK_BYTES or fewer.
        is_whole: no more will come.

    Raises:
        NotAModel: TW-MODEL-001 what it is instead; TW-MODEL-002 nothing came.
    """
    if is_whole and not head:
        raise NotAModel("the file is empty", limit="an ONNX file", actual="0 bytes",
                        code="TW-MODEL-002")  # fmt: skip
    if (ZIP_HEAD.startswith(head) and not is_whole) or head.startswith(ZIP_HEAD):
        return
    why = _message_fault(head, _MODEL_FIELDS, is_whole=is_whole)
    if why is None:
        return
    found = next((what for magic, what in _MAGIC if head.lstrip().startswith(magic)), None)
    what = f"the file is {found}" if found else f"the file is no ONNX model: {why}"
    code = "TW-MODEL-002" if why == _BREAKS_OFF and not found else None
    raise NotAModel(what, limit="an ONNX file, or a zip with one", actual=_shown(head), code=code)


def look_at_arrays(head: bytes, *, is_whole: bool) -> None:
    """Refuse what is not the beginning of a zip archive.

    Raises:
        NotAModel: TW-CAL-001.
    """
    if head.startswith(ZIP_HEAD) or (ZIP_HEAD.startswith(head) and not is_whole):
        return
    raise NotAModel("the body is not an .npz archive", limit="a zip of .npy members",
                    actual=_shown(head), code="TW-CAL-001")  # fmt: skip


def _shown(head: bytes) -> str:
    return f"bytes that start with {head[:8].hex()}" if head else "nothing"


def _message_fault(head: bytes, fields: dict[int, int], *, is_whole: bool) -> str | None:
    """Why the bytes begin no protobuf message of these fields; None as long as they may."""
    at, end = 0, len(head)
    is_first = True
    while at < end:
        tag = _varint(head, at)
        if tag is None:
            return "a tag does not end" if end - at >= _MAX_VARINT or is_whole else None
        (value, at) = tag
        field, wire = value >> 3, value & 7
        if wire not in (_VARINT, _FIXED64, _BYTES, _FIXED32) or field == 0:
            return f"no field has the tag {value:#x}"
        # The first field tells; others may be of an ONNX that is newer than this list.
        if fields.get(field, -1 if is_first else wire) != wire:
            return f"a model has no field {field} of wire type {wire}"
        is_first = False
        if wire in _FIXED:
            at += _FIXED[wire]
            continue
        number = _varint(head, at)
        if number is None:
            return "a number does not end" if end - at >= _MAX_VARINT or is_whole else None
        (size, at) = number
        if wire == _BYTES:
            inner = head[at : at + size]
            known = _INNER_FIELDS.get(field) if fields is _MODEL_FIELDS else None
            if known is not None:
                why = _message_fault(inner, known, is_whole=is_whole or len(inner) == size)
                if why is not None:
                    return why
            at += size
    return _BREAKS_OFF if is_whole and at > end else None


def _varint(head: bytes, at: int) -> tuple[int, int] | None:
    """(value, where the next byte is); None when it does not end within what is there."""
    value = 0
    for shift, byte in enumerate(head[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    return None


class Look(Protocol):
    """One of the two above."""

    def __call__(self, head: bytes, *, is_whole: bool) -> None: ...


class FirstLook:
    """Collects the first bytes of a stream and looks at them as they come.

    `is_done` once there are enough: from then on nothing is looked at.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self.head = b""
        self.is_done = False

    def see(self, piece: bytes | memoryview) -> None:
        """Take what is about to be stored.

        Raises:
            NotAModel: it cannot be what was announced.
        """
        if not self.is_done:
            self.head += bytes(piece[: LOOK_BYTES - len(self.head)])
            self.is_done = len(self.head) == LOOK_BYTES
            self._look(self.head, is_whole=False)

    def finish(self) -> None:
        """Look again when no more will come, if that was all.

        Raises:
            NotAModel: what came is too little to be what was announced.
        """
        if not self.is_done:
            self._look(self.head, is_whole=True)

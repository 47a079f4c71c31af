"""The file of a multipart form, taken out of the stream as it arrives.

Only the first part with a file name is a file; other fields are skipped.  The framework's own form
parser would first write the whole file to a temporary one.
"""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import Malformed

_MAX_HEADER_BYTES = 8192
_MAX_BOUNDARY_BYTES = 70
"""RFC 2046, section 5.1.1; the parser raises its own error beyond 256."""


class FormFile:
    """Feeds a multipart body through and hands the file's bytes on."""

    def __init__(self, content_type: str, write: Callable[[bytes], object]) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise Malformed("the form has no boundary", pointer="header:Content-Type")
        if len(boundary) > _MAX_BOUNDARY_BYTES:
            raise Malformed(
                "the form's boundary is too long", pointer="header:Content-Type",
                limit=_MAX_BOUNDARY_BYTES, actual=len(boundary),
            )  # fmt: skip
        self._write = write
        self._name, self._value = bytearray(), bytearray()
        self._is_file = False
        self._seen = False
        self._ended = False
        self.file_name = ""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            Malformed: they are not a multipart form.
        """
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise Malformed(f"the form cannot be read: {error}") from error

    def finish(self) -> None:
        """Check that the form was complete and had a file.

        Raises:
            Malformed: it was cut off, or no part has a file name.
        """
        if not self._ended:
            raise Malformed("the form ends before its last boundary")
        if not self._seen:
            raise Malformed("the form has no part with a file name", pointer="/file")

    def _part_begin(self) -> None:
        self._is_file = False
        self._name.clear()
        self._value.clear()

    def _header_name(self, piece: bytes, start: int, end: int) -> None:
        self._grow(self._name, piece[start:end])

    def _header_value(self, piece: bytes, start: int, end: int) -> None:
        self._grow(self._value, piece[start:end])

    def _grow(self, target: bytearray, piece: bytes) -> None:
        target += piece
        if len(target) > _MAX_HEADER_BYTES:
            raise Malformed("a part's header is too long", limit=_MAX_HEADER_BYTES)

    def _header_end(self) -> None:
        if bytes(self._name).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            file_name = options.get(b"filename")
            if file_name is not None and not self._seen:
                self._is_file = self._seen = True
                self.file_name = file_name.decode("utf-8", "replace")[:200]
        self._name.clear()
        self._value.clear()

    def _part_data(self, piece: bytes, start: int, end: int) -> None:
        if not self._is_file:
            return
        self._write(piece[start:end])

    def _part_end(self) -> None:
        self._is_file = False

    def _end(self) -> None:
        self._ended = True

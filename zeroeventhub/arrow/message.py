"""Where a message of an Arrow IPC stream ends, and whether it is packed; no more is read here.

A message is a marker, the length of its metadata, the metadata, and its body, whose length stands
in the metadata (Arrow Columnar Format, Encapsulated message format). The metadata is a FlatBuffer:
a table knows by its vtable where each of its fields is.
"""

import struct

from zeroeventhub.errors import ProtocolError

__all__ = ["PREFIX", "body_length", "is_packed", "metadata_length"]

PREFIX = 8
"""Bytes before the metadata."""

_MARKER = 0xFFFFFFFF

# Fields by their place in Message.fbs; RecordBatch is the third kind of header.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_RECORD_BATCH, _COMPRESSION = 3, 3


def metadata_length(prefix: bytes | bytearray) -> int:
    """Read how long the metadata behind a prefix is; 0 where the stream ends.

    Raises:
        ProtocolError: it is not the prefix of a message.
    """
    marker, length = struct.unpack_from("<Ii", prefix)
    if marker != _MARKER or length < 0:
        raise ProtocolError("The answer says that it is an Arrow stream, and is not.")
    return int(length)


def body_length(metadata: bytes) -> int:
    """Read how long the body of a message is.

    Raises:
        ProtocolError: the metadata does not say it.
    """
    try:
        field = _field(metadata, _root(metadata), _BODY_LENGTH)
        (length,) = struct.unpack_from("<q", metadata, field) if field else (0,)
    except struct.error:
        length = -1
    if length < 0:
        raise ProtocolError("A message of the Arrow stream does not say how long it is.")
    return int(length)


def is_packed(metadata: bytes) -> bool:
    """Tell whether a message is a record batch whose buffers are compressed.

    Raises:
        ProtocolError: the metadata does not say it.
    """
    try:
        message = _root(metadata)
        kind, header = (_field(metadata, message, field) for field in (_HEADER_TYPE, _HEADER))
        if not (kind and header) or metadata[kind] != _RECORD_BATCH:
            return False
        return _field(metadata, _followed(metadata, header), _COMPRESSION) != 0
    except (struct.error, IndexError):
        raise ProtocolError("A message of the Arrow stream is broken.") from None


def _root(buffer: bytes) -> int:
    return _followed(buffer, 0)


def _followed(buffer: bytes, place: int) -> int:
    (offset,) = struct.unpack_from("<I", buffer, place)
    return place + int(offset)


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return the place of a table's field; 0 if the table does not have it."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error
    (size,) = struct.unpack_from("<H", buffer, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + entry)
    return table + int(offset) if offset else 0

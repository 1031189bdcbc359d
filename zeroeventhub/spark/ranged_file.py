"""A file that is read by ranges of its bytes: of a folder, or over HTTP."""

import time
from collections.abc import Callable
from io import RawIOBase, UnsupportedOperation
from os import SEEK_CUR, SEEK_END, SEEK_SET
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx

from zeroeventhub._http.redaction import Redaction
from zeroeventhub.errors import ProtocolError, Unreachable

__all__ = ["RangedFile", "Read", "opened"]

Read = Callable[[int, int], bytes]
"""Read some bytes: from where, and how many."""

_PATIENCE = 30.0
"""Seconds that a range may take to come, however short it is."""

_SLOWEST = 64 * 1024
"""Bytes a second that a longer range has to come at."""

_MOVED_ON = {
    httpx.codes.UNAUTHORIZED,
    httpx.codes.FORBIDDEN,
    httpx.codes.NOT_FOUND,
    httpx.codes.GONE,
}
"""What a store answers to an address whose time is over, or whose file was replaced."""


class RangedFile(RawIOBase):
    """Read a file by ranges, as pyarrow reads Parquet.

    Args:
        read: reads some bytes.
        size: of the file.
    """

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Return the place that is read from next."""
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Choose the place that is read from next."""
        start = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}
        if whence not in start:
            raise UnsupportedOperation("A file is read from its start, its end, or here.")
        self._at = min(max(start[whence] + offset, 0), self._size)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as there is room for, and there are."""
        length = min(len(buffer), self._size - self._at)
        if length:
            buffer[:length] = self._read(self._at, length)
            self._at += length
        return length


def opened(url: str, http: httpx.Client) -> Read:
    """Return what reads the file of a URL.

    Args:
        url: of a file in a folder that is shared, or of an object that HTTP gives in ranges.
        http: sends requests, without the feed's credentials.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _of_folder(url2pathname(parts.path))
    return _over_http(url, http)


def _of_folder(path: str) -> Read:
    def read(start: int, length: int) -> bytes:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - the path is what it was given as
                file.seek(start)
                content = file.read(length)
        except FileNotFoundError:
            raise Unreachable(
                "A file that the feed names is not here: its folder has to be shared with all who "
                "read, or the option readSegments be false."
            ) from None
        return _whole(content, length)

    return read


def _over_http(url: str, http: httpx.Client) -> Read:
    address = httpx.URL(url)
    redaction = Redaction(address, http)

    def read(start: int, length: int) -> bytes:
        wanted = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        try:
            with redaction.asking(address), http.stream("GET", address, headers=wanted) as answer:
                _expect_range(answer)
                return _whole(_taken(answer, length), length)
        except httpx.RequestError as error:
            # Not its text: the URL may be in it, which lets everybody in.
            raise Unreachable(
                f"A file that the feed names cannot be reached: {type(error).__name__}."
            ) from None

    return read


def _expect_range(answer: httpx.Response) -> None:
    """Refuse an answer that is not a range of a file's bytes as they are."""
    status = answer.status_code
    if status in _MOVED_ON or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise Unreachable(f"A file that the feed names was not given: status {status}.")
    if status != httpx.codes.PARTIAL_CONTENT:
        raise ProtocolError(
            f"A file that the feed names was answered for with status {status} where a range of "
            "its bytes was asked for."
        )
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise ProtocolError("A file that the feed names came in a content coding.")


def _taken(answer: httpx.Response, length: int) -> bytes:
    """Take the bytes of a range, and no more: what is longer or comes too slowly is given up."""
    content = bytearray()
    deadline = time.monotonic() + max(_PATIENCE, length / _SLOWEST)
    for piece in answer.iter_raw():
        content += piece
        if len(content) > length:
            raise ProtocolError("A file that the feed names was answered for with too many bytes.")
        if time.monotonic() > deadline:
            raise Unreachable("A file that the feed names comes too slowly.")
    return bytes(content)


def _whole(content: bytes, length: int) -> bytes:
    if len(content) != length:
        raise Unreachable("A file that the feed names is shorter than it says.")
    return content

"""Caches for the parts of an archive: decoded parts in memory, fetched bytes on disk."""

import os
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary
from zlib import crc32

_CHECK = 4
"""Bytes of the checksum at the beginning of a cached file."""

_SCANS = 16
"""A process scans all files each time it has written a sixteenth of the cache's bound."""


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user may read; an opener for `open`."""
    return os.open(path, flags, mode=0o600)


Key = tuple[str, str | int]
"""The name of a segment, and a part of it."""


class MemoryCache:
    """Hold the last used objects, up to a sum of their `weight` in bytes; threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Key, Any] = OrderedDict()
        # Finds objects that are still in use, even if there is no room for them.
        self._alive: WeakValueDictionary[Key, Any] = WeakValueDictionary()
        self._weight = 0
        self._lock = Lock()

    def get(self, key: Key) -> Any:
        """Return the object of a key; None if there is none."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._alive.get(key)

    def keep(self, key: Key, value: Any) -> Any:
        """Add an object unless its key has one; drop those that were not used for the longest.

        Return the one that the key has: its users would miss it if another took its place.
        """
        with self._lock:
            value = self._alive.setdefault(key, value)
            if key not in self._held:
                self._held[key] = value
                self._weight += value.weight
            while self._weight > self._most:
                _, dropped = self._held.popitem(last=False)
                self._weight -= dropped.weight
            return value

    def drop(self, names: Collection[str]) -> None:
        """Drop the objects whose keys begin with one of some names."""
        with self._lock:
            for key in [key for key in self._alive if key[0] in names]:
                self._alive.pop(key, None)
                if (dropped := self._held.pop(key, None)) is not None:
                    self._weight -= dropped.weight


class DiskCache:
    """Hold files in a local folder, which processes may share, up to a number of bytes.

    A missing or damaged file is never an error: the caller fetches it again. The modification time
    of a file is that of its last use.

    Args:
        folder: the folder; the first file creates it.
        most: bytes at most; each process may exceed it by a sixteenth for a moment.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._unseen = most  # so that the first file causes a scan

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing or damaged."""
        path = self._folder / name
        try:
            content = path.read_bytes()
            check, content = content[:_CHECK], content[_CHECK:]
            if crc32(content).to_bytes(_CHECK) != check:
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            return None
        return content

    def keep(self, name: str, content: bytes) -> None:
        """Write a file if the disk has room."""
        path = self._folder / name
        draft = path.with_name(f"{path.name}.{token_hex(4)}~")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(draft, "xb", opener=open_private) as file:
                file.write(crc32(content).to_bytes(_CHECK) + content)
            draft.replace(path)
        except OSError:  # such as a full disk
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            return
        self._unseen += len(content)
        if self._unseen > self._most // _SCANS:
            self._unseen = 0
            self._shrink()

    def keep_only(self, names: Collection[str]) -> None:
        """Delete all files except those with one of these names before the first dot."""
        for entry in self._entries():
            if entry.name.partition(".")[0] not in names:
                with suppress(OSError):
                    Path(entry.path).unlink()

    def _shrink(self) -> None:
        """Delete the files that were not used for the longest, down to the bound."""
        files = []
        for entry in self._entries():
            with suppress(OSError):
                state = entry.stat()
                files.append((state.st_mtime_ns, state.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most:
                return
            with suppress(OSError):
                Path(path).unlink()
                total -= size

    def _entries(self) -> Iterator["os.DirEntry[str]"]:
        with suppress(OSError):
            yield from os.scandir(self._folder)

"""What was read of an archive, kept: in memory as it is used, on the disk as it was fetched."""

import os
from collections import OrderedDict
from collections.abc import Collection, Hashable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, Protocol
from weakref import WeakValueDictionary
from zlib import crc32

__all__ = [
    "DiskCache",
    "Memory",
    "open_private",
]

_CHECK = 4
"""How many bytes a checksum has, with which a file of the cache begins."""

_SCANS = 16
"""What part of the bound is written by a process before it looks at all files again."""


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user may read, for `open`."""
    return os.open(path, flags, mode=0o600)


class _Weighed(Protocol):
    """Know how many bytes it takes."""

    @property
    def weight(self) -> int: ...


class Memory:
    """Keep what was used last, within a bound of bytes; threads may share it.

    Args:
        most: the bound.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Hashable, _Weighed] = OrderedDict()
        # What is still in use is found, also where there is no room for it.
        self._alive: WeakValueDictionary[Hashable, _Weighed] = WeakValueDictionary()
        self._weight = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return what is kept under a key; None if nothing is."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._alive.get(key)

    def keep(self, key: Hashable, value: _Weighed) -> None:
        """Keep something; what was not used for the longest goes."""
        with self._lock:
            if key in self._held:
                return
            self._held[key] = self._alive[key] = value
            self._weight += value.weight
            while self._weight > self._most:
                _, gone = self._held.popitem(last=False)
                self._weight -= gone.weight

    def clear(self) -> None:
        """Keep nothing any longer."""
        with self._lock:
            self._held.clear()
            self._alive.clear()
            self._weight = 0


class DiskCache:
    """Keep files in a local folder, which processes may share, within a bound of bytes.

    It is never an error if something is missing or broken: it is fetched again. Files are as old
    as their last use.

    Args:
        folder: where they are; it is made if need be.
        most: the bound; for a moment each process may add a sixteenth.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._unseen = most  # so that the first file is a reason to look

    def get(self, name: str) -> bytes | None:
        """Return a file; None if it is not there as it was written."""
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
        """Keep a file, if there is room on the disk."""
        path = self._folder / name
        draft = path.with_name(f"{path.name}.{token_hex(4)}~")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(draft, "xb", opener=open_private) as file:
                file.write(crc32(content).to_bytes(_CHECK) + content)
            draft.replace(path)
        except OSError:  # such as a disk that is full
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            return
        self._unseen += len(content)
        if self._unseen > self._most // _SCANS:
            self._unseen = 0
            self._shrink()

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all files but those of some names, each with any ending."""
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                if entry.name.partition(".")[0] not in names:
                    with suppress(OSError):
                        Path(entry.path).unlink()

    def _shrink(self) -> None:
        """Remove the files that were not used for the longest, down to the bound."""
        files = []
        with suppress(OSError):
            for entry in os.scandir(self._folder):
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

"""Where the files of an archive are: object stores and folders, and the URLs that share them."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store, from_url

from zeroeventhub.archive.cache import open_private
from zeroeventhub.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "Objects",
    "damaged",
]

_RETRY = 1.0
"""Seconds after which it is worth to ask again a store that did not answer."""

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@|\?[^\s\"']*")
"""The user, password and query of a URL: what opens the store, or one of its objects."""

_log = logging.getLogger("zeroeventhub.archive")


def damaged(path: str) -> Unavailable:
    """Log which file is damaged, and return what readers may know of it: its name may open it."""
    _log.error("The archive's file %s is not what was written.", path)
    return Unavailable("A file of the archive is not what was written.", retry_after=60)


class Objects:
    """Create, read and list objects.

    Args:
        store: a store of obstore's, the URL of one, or a local folder.
        private: whether only this user may read files of a folder.

    Raises:
        ConfigurationError: there is no such store.
    """

    def __init__(self, store: "str | Path | ObjectStore", *, private: bool = True) -> None:
        self.store: Any = _opened(store, private=private)
        """The store of obstore's."""
        self._create: Callable[[str, bytes], None] = self._put
        self._sweep: Callable[[str, datetime], None] = lambda _folder, _before: None
        if isinstance(self.store, LocalStore) and self.store.prefix is not None:
            durable = _DurableFolder(Path(self.store.prefix), private=private)
            self._create, self._sweep = durable.create, durable.sweep

    @property
    def signs(self) -> bool:
        """Return whether the store can sign URLs of its objects."""
        return isinstance(self.store, AzureStore | GCSStore | S3Store)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object, whole or not at all; return whether there was none.

        Raises:
            Unavailable: the store did not answer; the object may be there or not.
        """
        with _explained():
            try:
                self._create(path, content)
            except (AlreadyExistsError, FileExistsError):
                return False
        return True

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or a part of it.

        Raises:
            FileNotFoundError: it is not there.
            Unavailable: the store did not answer.
        """
        with _explained():
            if length is None:
                return bytes(obstore.get(self.store, path).bytes())
            return bytes(obstore.get_range(self.store, path, start=start, length=length))

    def signed(self, path: str, lifetime: timedelta) -> str:
        """Return a URL with which everybody can read an object for some time.

        Raises:
            Unavailable: the store did not answer.
        """
        with _explained():
            return str(obstore.sign(self.store, "GET", path, lifetime))

    def names(self, folder: str, after: str = "") -> list[str]:
        """List the names of objects in a folder, in order, those after one."""
        return sorted(name for name, _ in self.ages(folder, after))

    def ages(self, folder: str, after: str = "") -> Iterator[tuple[str, datetime]]:
        """Yield the names of objects in a folder, in any order, and when each was created."""
        offset = f"{folder}/{after}" if after else None
        with _explained():
            for some in obstore.list(self.store, f"{folder}/", offset=offset, chunk_size=1000):
                for one in some:
                    name = one["path"].rpartition("/")[2]
                    # Some servers do not know of offsets, and list everything.
                    if name > after:
                        yield name, one["last_modified"]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, those that are there."""
        for path in paths:
            with _explained():
                try:
                    obstore.delete(self.store, path)
                except FileNotFoundError:
                    continue

    def sweep(self, folder: str, before: datetime) -> None:
        """Delete what writers that died have left half-written in a folder.

        Args:
            folder: where it is; a store has nothing of that kind.
            before: when they began, at the latest.
        """
        with _explained():
            self._sweep(folder, before)

    def _put(self, path: str, content: bytes) -> None:
        obstore.put(self.store, path, content, mode="create")


class _DurableFolder:
    """Create files that are whole as soon as they are seen, and stay if the power fails.

    obstore links a whole file as well, but does not wait for the disk.

    Args:
        folder: where they are.
        private: whether only this user may read them.
    """

    def __init__(self, folder: Path, *, private: bool) -> None:
        self._folder = folder
        self._opener = open_private if private else None

    def create(self, path: str, content: bytes) -> None:
        """Create a file.

        Raises:
            FileExistsError: it is there.
        """
        file = self._folder / path
        self._make(file.parent)
        # What ends so is not listed by obstore.
        draft = file.with_name(f"{file.name}#{int(token_hex(7), 16)}")
        try:
            with open(draft, "xb", opener=self._opener) as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
        _sync(file.parent)

    def sweep(self, folder: str, before: datetime) -> None:
        """Delete drafts of those that died, which are of before a moment."""
        for draft in (self._folder / folder).glob("*#*"):
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < before.timestamp():
                    draft.unlink()

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(0o700 if self._opener else 0o777, parents=True, exist_ok=True)
            _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where a folder can be waited for."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _opened(store: "str | Path | ObjectStore", *, private: bool) -> Any:
    if not isinstance(store, str | Path):
        return store
    try:
        if isinstance(store, str) and "://" in store:
            return from_url(store)
        folder = Path(store).absolute()
        folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
        return LocalStore(folder)
    except (BaseError, OSError, ValueError) as error:
        raise ConfigurationError(f"The archive cannot be opened: {_sentence(error)}") from error


@contextmanager
def _explained() -> Iterator[None]:
    """Raise an error of the store's as one of this library's.

    Readers of the feed see the text of Unavailable. The store's own words, which have addresses and
    names of files in them, are for the log.
    """
    try:
        yield
    except (AlreadyExistsError, FileExistsError, FileNotFoundError):
        raise
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise ConfigurationError(
            f"The archive's store does not let this process in: {_sentence(error)}"
        ) from error
    except (BaseError, OSError) as error:
        _log.warning("The archive's store did not answer: %s", _sentence(error))
        raise Unavailable("The archive does not answer just now.", retry_after=_RETRY) from error


def _sentence(error: Exception) -> str:
    """Return what an error says, without credentials and what obstore adds for its developers."""
    return _CREDENTIALS.sub("", str(error).partition("\n")[0])

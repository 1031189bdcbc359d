"""The files of an archive: object stores and folders, and the URLs that share them."""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

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

_RETRY = 1.0
"""Seconds after which a client may retry if the store did not answer."""

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@|\?[^\s\"']*")
"""The user, password and query of a URL, which grant access to the store or to an object."""

_log = logging.getLogger("zeroeventhub.archive")

_users: set[int] = set()
"""The process that has used obstore; in a fork, without its threads, the parent as well."""


def damaged(path: str) -> Unavailable:
    """Log which file is damaged, and return an error without its name, which may grant access."""
    _log.error("The archive's file %s is damaged.", path)
    return Unavailable("A file of the archive is damaged.", retry_after=60)


class Objects:
    """Create, read and list the objects of a store.

    A folder is created with its first object. A file in it is complete once it is visible, and
    survives a power failure; obstore does not wait for the disk.

    Args:
        store: a store of obstore's, the URL of one, or a local folder.
        private: whether only this user may read files of a folder.

    Raises:
        ConfigurationError: there is no such store.
    """

    def __init__(self, store: "str | Path | ObjectStore", *, private: bool = True) -> None:
        given: object = store
        if given is None or given == "":
            raise ConfigurationError(
                f"An archive has a folder, a URL or a store of obstore's, and {given!r} is none."
            )
        self._mode = 0o700 if private else 0o777
        self._opener = open_private if private else None
        self._store: Any = None
        self._folder: Path | None = None
        if isinstance(store, str) and store.startswith("file:///"):
            store = Path(url2pathname(urlsplit(store).path))
        try:
            if isinstance(store, Path) or (isinstance(store, str) and "://" not in store):
                self._folder = Path(store).absolute()
                if self._folder.exists() and not self._folder.is_dir():
                    raise NotADirectoryError(f"{self._folder} is not a folder.")
            else:
                self._store = from_url(store) if isinstance(store, str) else store
        except (BaseError, OSError, ValueError) as error:
            raise ConfigurationError(f"The archive cannot be opened: {_sentence(error)}") from error
        if isinstance(self._store, LocalStore) and self._store.prefix is not None:
            self._folder = Path(self._store.prefix)

    @property
    def store(self) -> Any:
        """Return the store of obstore's; raise FileNotFoundError if its folder does not exist."""
        if self._store is None and self._folder is not None:
            self._store = LocalStore(self._folder.resolve(strict=True))
        return self._store

    @property
    def name(self) -> str:
        """Return a text that differs between stores."""
        return f'LocalStore("{self._folder}")' if self._folder else repr(self._store)

    @property
    def can_sign(self) -> bool:
        """Return whether the store can sign URLs of its objects."""
        return isinstance(self._store, AzureStore | GCSStore | S3Store)

    def create(self, path: str, content: bytes) -> bool:
        """Create an object, completely or not at all; return False if it existed.

        Raises:
            Unavailable: the store did not answer, and the object may exist or not; or it lost the
                object before it was complete.
        """
        with _explained():
            try:
                if self._folder is None:
                    obstore.put(self.store, path, content, mode="create")
                else:
                    self._create_file(self._folder, path, content)
            except (AlreadyExistsError, FileExistsError):
                return False
            except FileNotFoundError as error:
                raise Unavailable(
                    "The archive's store lost a file before it was complete: its bucket is "
                    "missing, or the clock of a process that tidies it is ahead.",
                    retry_after=_RETRY,
                ) from error
        return True

    def _create_file(self, root: Path, path: str, content: bytes) -> None:
        """Create a file; raise FileExistsError if it exists."""
        file = root / path
        for folder in (root, file.parent):
            if not folder.is_dir():
                folder.mkdir(self._mode, parents=True, exist_ok=True)
                _sync(folder.parent)
        # obstore does not list names that end with # and digits.
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

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or a part of it; raise FileNotFoundError if it does not exist."""
        with _explained():
            if length is None:
                return bytes(obstore.get(self.store, path).bytes())
            return bytes(obstore.get_range(self.store, path, start=start, length=length))

    def signed(self, path: str, lifetime: timedelta) -> str:
        """Return a URL with which anyone can read an object until its lifetime ends."""
        with _explained():
            return str(obstore.sign(self.store, "GET", path, lifetime))

    def names(self, folder: str, after: str = "") -> list[str]:
        """List the names of the objects in a folder that follow `after`, in order."""
        return sorted(name for name, _ in self.ages(folder, after))

    def ages(self, folder: str, after: str = "") -> Iterator[tuple[str, datetime]]:
        """Yield the names of the same objects in any order, and when each was created."""
        offset = f"{folder}/{after}" if after else None
        with _explained():
            try:
                store = self.store
            except FileNotFoundError:
                return
            for listed in obstore.list(store, f"{folder}/", offset=offset, chunk_size=1000):
                for found in listed:
                    name = found["path"].rpartition("/")[2]
                    # Some servers ignore offsets, and list everything.
                    if name > after:
                        yield name, found["last_modified"]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, as far as they exist."""
        for path in paths:
            with _explained(), suppress(FileNotFoundError):
                obstore.delete(self.store, path)

    def sweep(self, folder: str, before: datetime) -> None:
        """Delete incomplete files of a folder that were begun before a moment."""
        if self._folder is None:
            return
        with _explained():
            for draft in (self._folder / folder).glob("*#*"):
                with suppress(FileNotFoundError):
                    if draft.stat().st_mtime < before.timestamp():
                        draft.unlink()


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if the operating system can."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _explained() -> Iterator[None]:
    """Translate the store's errors; their texts have addresses, so that only the log gets them."""
    _users.add(os.getpid())
    if len(_users) > 1:
        raise ConfigurationError(
            "This process was forked from one that has used an archive, and would wait for its "
            "store for ever: use the archive only after the fork, or start processes by `spawn`."
        )
    try:
        yield
    except (AlreadyExistsError, FileExistsError, FileNotFoundError):
        raise
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise ConfigurationError(
            f"The archive's store denies this process access: {_sentence(error)}"
        ) from error
    except (BaseError, OSError) as error:
        _log.warning("The archive's store did not answer: %s", _sentence(error))
        raise Unavailable("The archive does not answer just now.", retry_after=_RETRY) from error


def _sentence(error: Exception) -> str:
    """Return the first line of an error's message, without credentials."""
    return _CREDENTIALS.sub("", str(error).partition("\n")[0])

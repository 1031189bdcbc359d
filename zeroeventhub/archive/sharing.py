"""How readers reach the files of an archive themselves, for reading in bulk."""

from datetime import timedelta
from urllib.parse import urlsplit

from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import ConfigurationError

__all__ = ["SIGNED", "Sharing"]

SIGNED = "signed"
"""Says that files are shared by URLs that the store signs."""


class Sharing:
    """Name the URLs of files.

    Args:
        objects: has the files.
        shared: SIGNED, what stands before a file's name in its URL, or None; see `Archive`.
        lifetime: how long a signed URL is good.

    Raises:
        ConfigurationError: nobody would reach files in this way.
    """

    def __init__(self, objects: Objects, shared: str | None, lifetime: timedelta) -> None:
        if shared == SIGNED and not objects.signs:
            raise ConfigurationError(
                "This store does not sign URLs: share its files by a URL, or not at all."
            )
        if (
            shared is not None
            and shared != SIGNED
            and urlsplit(shared).scheme not in {"file", "http", "https"}
        ):
            raise ConfigurationError(
                "The files of an archive are shared by a URL of file, http or https, or as "
                f'"{SIGNED}".'
            )
        self._objects = objects
        self._shared = shared
        self._lifetime = lifetime

    @property
    def is_on(self) -> bool:
        """Tell whether readers reach the files themselves."""
        return self._shared is not None

    def url(self, path: str) -> str:
        """Return the URL of a file.

        Raises:
            ConfigurationError: files are not shared.
            Unavailable: the store did not answer, which was asked to sign it.
        """
        if self._shared is None:
            raise ConfigurationError("The files of this archive are not shared: Archive(shared=…).")
        if self._shared == SIGNED:
            return self._objects.signed(path, self._lifetime)
        return f"{self._shared.rstrip('/')}/{path}"

"""The history of a feed as files in a folder or an object store: sealed once, never changed.

This package does not use SQL, and treats cursors as opaque text.
"""

from zeroeventhub.errors import require

for package in ("obstore", "pyarrow"):
    require(package, extra="archive", user="An archive")

from zeroeventhub.archive.archive import Archive  # noqa: E402 - after it

__all__ = ["Archive"]

"""A wall clock that jumps."""

import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from zeroeventhub import times
from zeroeventhub.archive import archive, segment_writer
from zeroeventhub.archive.objects import Objects


class Clock:
    """Tell archives in a folder, their files, and the readers of a table a time that is off.

    Attributes:
        ahead: how far the clock is ahead.
    """

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.ahead = timedelta()
        for module in (archive, segment_writer, times):
            monkeypatch.setattr(module, "datetime", self)
        create = Objects.create

        def created(objects: Objects, path: str, content: bytes) -> bool:
            if not create(objects, path, content):
                return False
            os.utime(folder / path, (self.now(None).timestamp(),) * 2)
            return True

        monkeypatch.setattr(Objects, "create", created)

    def now(self, zone: tzinfo | None) -> datetime:
        """Return the time of this clock."""
        return datetime.now(zone) + self.ahead

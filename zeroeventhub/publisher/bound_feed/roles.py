"""Those who answer for a feed."""

from dataclasses import dataclass

from zeroeventhub.publisher.archived.files import Files
from zeroeventhub.publisher.archived.sealer import Sealer
from zeroeventhub.publisher.compacting import Compactor
from zeroeventhub.publisher.progress import Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.trimming import Trimmer

__all__ = ["Roles"]


@dataclass(frozen=True)
class Roles:
    """Hold those who answer for a feed, each asked through a connection.

    Attributes:
        reader: answers its readers.
        trimmer: trims its table; None where nothing tells what was trimmed.
        sealer: seals it into an archive; None where there is none.
        files: finds events in files of the archive; None where those are not shared.
        registry: notes how far consumers have come; None where that is not kept.
        compactor: deletes what later events stand for; None where all events are kept.
    """

    reader: Reader
    trimmer: Trimmer | None = None
    sealer: Sealer | None = None
    files: Files | None = None
    registry: Registry | None = None
    compactor: Compactor | None = None

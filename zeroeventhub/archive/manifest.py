"""The manifest of an archive: which segments it has, in which form, and how it is replaced."""

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Annotated
from zlib import crc32

import msgspec
import pyarrow as pa

from zeroeventhub.archive.objects import Objects, damaged
from zeroeventhub.errors import ConfigurationError, Unavailable

__all__ = [
    "INDEX",
    "PLACES",
    "SCHEMA",
    "Erasure",
    "GroupEntry",
    "Manifest",
    "Manifests",
    "Removed",
    "Segment",
    "decode_index",
    "digest_of",
    "encode_index",
    "is_whole",
]

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("key", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("data", pa.string()),
    ]
)
"""The columns: `data` is the event's JSON, byte for byte; NULL where the event is no longer there.

`headers` is a JSON object, and NULL where there are none.
"""

PLACES = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
    ]
)
"""What lies beside a segment of several partitions: its positions in order, and where each is."""

INDEX = b"zeroeventhub"
"""The name under which a file's own metadata have its index."""


def digest_of(content: bytes | memoryview) -> str:
    """Return the BLAKE2b digest of some bytes: no other bytes can be made that have it."""
    return blake2b(content, digest_size=16).hexdigest()


def is_whole(content: bytes, digest: str, check: int | None = None) -> bool:
    """Return whether bytes are what was written.

    Args:
        content: the bytes.
        digest: of what was written; empty where it is not known, as in archives of before.
        check: a checksum, which is asked then; None where there is none either.
    """
    if digest:
        return digest_of(content) == digest
    return check is None or crc32(content) == check


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    """Describe a row group: events of one partition that follow each other.

    Attributes:
        partition: the partition.
        first: the first position.
        last: the last one.
        places: how many positions there are.
        events: how many of them have their event.
        size: how many bytes the events have.
        start: where the group begins in the file.
        length: how many bytes it has there.
        check: a checksum of them.
        earliest: the earliest time of an event; None where none has a time.
        latest: the latest one.
        lowest: the lowest id; None where no event has one.
        highest: the highest one.
        digest: a digest of its bytes; empty in segments of before there was one.
    """

    partition: int
    first: int
    last: int
    places: int
    events: int
    size: int
    start: int
    length: int
    check: int
    earliest: datetime | None
    latest: datetime | None
    lowest: str | None
    highest: str | None
    digest: str = ""


encode_index = msgspec.json.Encoder().encode
decode_index = msgspec.json.Decoder(tuple[GroupEntry, ...]).decode

FORMAT = 1
"""The version of the form of manifests and segments."""


_Name = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{19}-[0-9]{19}-[0-9a-f]{16}\Z")]
"""The name of a segment: it becomes a part of paths, so none that leads elsewhere is read."""


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a segment: the events of all partitions in a closed range of positions.

    Attributes:
        name: of its file; no other segment ever has it.
        after: the position after which it begins.
        upto: the position at which it ends.
        places: how many positions in it have an event, or had one.
        events: how many events there are.
        size: how many bytes the file has.
        sha256: of the file, in hexadecimal digits.
        footer: how many bytes at the end of the file tell where the rest is.
        footer_check: a checksum of them.
        last: the cursor after the last event, by which another history is noticed.
        earliest: the earliest time of an event; None where none has a time.
        latest: the latest one.
        footer_digest: a digest of those bytes at the end; empty in manifests of before there was
            one, as the next one is.
        places_digest: a digest of the file beside it; empty for one partition as well.
    """

    name: _Name
    after: int
    upto: int
    places: int
    events: int
    size: int
    sha256: str
    footer: int
    footer_check: int
    last: str
    earliest: datetime | None = None
    latest: datetime | None = None
    footer_digest: str = ""
    places_digest: str = ""


class Removed(msgspec.Struct, frozen=True):
    """Name a file that no manifest needs any more, and say since when.

    Attributes:
        name: of the segment.
        since: the moment at which a manifest without it was made.
    """

    name: _Name
    since: datetime


class Erasure(msgspec.Struct, frozen=True):
    """Say that events were erased.

    Attributes:
        at: when.
        events: how many.
    """

    at: datetime
    events: int


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Say what is in an archive.

    Attributes:
        generation: the number of this manifest; the highest one counts.
        feed: the feed whose events they are, as its publisher describes it in a digest.
        segments: in the order of their positions, without a gap between two.
        removed: files that were replaced and are still there for those who read an older manifest.
        erasures: what was erased.
        format: the version of the form.
    """

    generation: int = 0
    feed: str = ""
    segments: tuple[Segment, ...] = ()
    removed: tuple[Removed, ...] = ()
    erasures: tuple[Erasure, ...] = ()
    format: int = FORMAT

    @property
    def sealed(self) -> int:
        """Return the position up to which all events are in segments."""
        return self.segments[-1].upto if self.segments else 0

    @property
    def last(self) -> str | None:
        """Return the cursor after the last event; None if there is none."""
        return self.segments[-1].last if self.segments else None

    def at(self, position: int) -> int:
        """Return the index of the segment that covers a position, or of the next one."""
        return bisect_left(self.segments, position, key=lambda segment: segment.upto)

    def encode(self) -> bytes:
        """Write the manifest, and after all else its own digest."""
        content = msgspec.json.format(_encode(self), indent=1).removesuffix(b"\n}") + b',\n "'
        return content + _digest_field(content)

    @classmethod
    def decode(cls, content: bytes) -> "Manifest":
        """Read a manifest.

        Raises:
            ConfigurationError: it is not one, or of a version that this one cannot read.
        """
        try:
            if (version := _peek(content).format) != FORMAT:
                raise ConfigurationError(
                    f"The archive has the format {version}, and this version of zeroeventhub "
                    f"reads {FORMAT}: upgrade it."
                )
            return _decode(content)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"The archive's manifest cannot be read ({error}): this is no archive, or it was "
                "changed by another program."
            ) from error


class _Format(msgspec.Struct):
    """Hold what has to be known of a manifest before anything else."""

    format: int = FORMAT


_encode = msgspec.json.Encoder().encode
_peek = msgspec.json.Decoder(_Format).decode
_decode = msgspec.json.Decoder(Manifest).decode

_DIGEST = b"blake2b"
"""The name of a manifest's last field: a digest of all that stands before that name."""


def _digest_field(content: bytes) -> bytes:
    """Return the end of a manifest, of which the rest is given."""
    return b'%b": "%b"\n}' % (_DIGEST, digest_of(content).encode())


_FOLDER = "manifest"

_KEPT = 10
"""How many generations stay, however old they are."""


class Manifests:
    """Read the newest manifest, and create the next one.

    A generation is an object that is created unless it is there: of two processes that add to the
    archive at once, one has to look again. No clock and no lock of the store is relied on.

    Args:
        objects: where they are.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def newest(self, known: Manifest) -> Manifest:
        """Return the newest manifest.

        Args:
            known: an earlier one, after which it is looked for.

        Raises:
            ConfigurationError: it cannot be read by this version.
            Unavailable: the store did not answer, or the manifest is not what was written.
        """
        names = self._objects.names(_FOLDER, _name(known.generation) if known.generation else "")
        whole = [name for name in names if name.endswith(_ENDING)]
        if not whole:
            return known
        path = f"{_FOLDER}/{whole[-1]}"
        try:
            content = self._objects.read(path)
        except FileNotFoundError:
            raise Unavailable("The archive's manifest has just been replaced.") from None
        before, named, _ = content.rpartition(_DIGEST)
        # One of before there were digests has none.
        if named and content != before + _digest_field(before):
            raise damaged(path)
        return Manifest.decode(content)

    def create(self, manifest: Manifest) -> bool:
        """Create the next generation; return whether it is the newest now.

        If not, another process was before, or has already gone on from this one, or the store was
        asked twice because its answer was lost: look again.

        Raises:
            Unavailable: the store did not answer, and the manifest may be there or not.
        """
        name = _name(manifest.generation)
        if not self._objects.create(f"{_FOLDER}/{name}", manifest.encode()):
            return False
        # Who slept for so long that later generations were made, and this number was tidied away,
        # has created what no reader reads.
        return not self._objects.names(_FOLDER, name)

    def tidy(self, newest: Manifest, grace: timedelta) -> None:
        """Remove manifests that are old and that no reader can still be looking at."""
        before = datetime.now(UTC) - grace
        highest = _name(max(newest.generation - _KEPT, 0))
        old = [
            name
            for name, created in self._objects.ages(_FOLDER)
            if name < highest and created < before
        ]
        self._objects.delete([f"{_FOLDER}/{name}" for name in sorted(old)])


_ENDING = ".json"


def _name(generation: int) -> str:
    return f"{generation:012}{_ENDING}"

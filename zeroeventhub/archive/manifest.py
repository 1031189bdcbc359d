"""The manifest of an archive, which lists its segments, and how a new one replaces it."""

from bisect import bisect_left
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Annotated
from zlib import crc32

import msgspec
import pyarrow as pa

from zeroeventhub.archive.objects import Objects, damaged
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.times import ago

_PLACE = [
    pa.field("position", pa.int64(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
]

SCHEMA = pa.schema(
    [
        *_PLACE,
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("key", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("headers", pa.string()),
        pa.field("data", pa.string()),
    ]
)
"""The columns of a segment: `data` is the event's JSON, byte for byte, NULL if the event has been
deleted; `version` is its number within its key, NULL if it has none, and missing in archives of
earlier releases; `headers` is a JSON object, NULL if there are none."""

PLACES = pa.schema(_PLACE)
"""The columns of the index of a segment with several partitions, in the order of positions."""

INDEX = b"zeroeventhub"
"""The key of a segment's index in the metadata of its file."""


def digest_of(content: bytes | memoryview) -> str:
    """Return the BLAKE2b digest of some bytes."""
    return blake2b(content, digest_size=16).hexdigest()


def is_whole(content: bytes, digest: str, check: int | None = None) -> bool:
    """Return whether bytes are undamaged.

    Archives of earlier releases have no digest, and perhaps a CRC-32 to compare, `check`.
    """
    if digest:
        return digest_of(content) == digest
    return check is None or crc32(content) == check


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    """Describe a row group: consecutive events of one partition.

    Attributes:
        places: the number of positions.
        events: how many of these events have not been deleted.
        size: bytes of the events' JSON.
        start: offset of the group in the file.
        length: bytes of the group in the file.
        check: the CRC-32 of those bytes.
        earliest: the earliest time of an event; None if no event has a time.
        latest: the latest time.
        lowest: the lowest id; None if no event has an id.
        highest: the highest id.
        digest: the digest of the group's bytes; empty in segments of earlier releases.
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
"""The version of the format of manifests and segments."""


_Name = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{19}-[0-9]{19}-[0-9a-f]{16}\Z")]
"""The name of a segment. It is a part of paths, so a name that leads out of the archive fails."""


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a segment: the events of all partitions in a closed range of positions.

    Attributes:
        name: of its file; unique.
        after: the position before the range.
        upto: the last position of the range.
        places: how many positions have an event, or had one.
        events: how many events it has.
        size: bytes of the file.
        sha256: of the file, in hexadecimal digits.
        footer: bytes at the end of the file that index the rest.
        footer_check: the CRC-32 of those bytes.
        last: the cursor after the last event, which shows whether the feed has the same history.
        earliest: the earliest time of an event; None if no event has a time.
        latest: the latest time.
        footer_digest: the digest of the footer; empty in manifests of earlier releases.
        places_digest: the digest of the index of positions; empty for one partition as well.
        written: when the segment was written; None in manifests of earlier releases.
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
    written: datetime | None = None


class Removed(msgspec.Struct, frozen=True):
    """A segment that was replaced, and when."""

    name: _Name
    since: datetime


class Erasure(msgspec.Struct, frozen=True):
    """An erasure of events: when, and how many."""

    at: datetime
    events: int


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has to be known of a feed to publish it without its table.

    Attributes:
        info: the partitions to read, and their token.
        partitions: the partitions that events may be in, including those that are not read.
        attributes: which of id, type, key and time events have.
        recipe: the digest of how the feed makes events from rows, as in cursors without a secret.
        compacted: the position up to which the table may lack single events.
    """

    info: FeedInfo
    partitions: tuple[int, ...]
    attributes: tuple[str, ...]
    recipe: str
    compacted: int = 0


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of an archive.

    Attributes:
        generation: the number of this manifest; the highest one is valid.
        feed: the digest by which the publisher identifies the feed.
        segments: in the order of their positions, without gaps.
        removed: replaced segments, whose files readers of an older manifest still need.
        erasures: what was erased.
        format: the version of the format.
        description: what else is known of the feed; None in archives of earlier releases.
        continued: the position after which a restored table has gone on; 0 if none was restored.
    """

    generation: int = 0
    feed: str = ""
    segments: tuple[Segment, ...] = ()
    removed: tuple[Removed, ...] = ()
    erasures: tuple[Erasure, ...] = ()
    format: int = FORMAT
    description: Description | None = None
    continued: int = 0

    @property
    def sealed(self) -> int:
        """Return the position up to which segments hold all events."""
        return self.segments[-1].upto if self.segments else 0

    @property
    def last(self) -> str | None:
        """Return the cursor after the last event; None without segments."""
        return self.segments[-1].last if self.segments else None

    @property
    def compacted(self) -> int:
        """Return the position up to which segments may lack single events."""
        known = 0 if self.description is None else self.description.compacted
        return min(known, self.sealed)

    def at(self, position: int) -> int:
        """Return the index of the segment that covers a position, or of the next one."""
        return bisect_left(self.segments, position, key=lambda segment: segment.upto)

    def encode(self) -> bytes:
        """Write the manifest, with its own digest as the last field."""
        content = msgspec.json.format(_encode(self), indent=1).removesuffix(b"\n}") + b',\n "'
        return content + _digest_field(content)

    @classmethod
    def decode(cls, content: bytes) -> "Manifest":
        """Read a manifest; refuse one of a format that this version cannot read."""
        try:
            if (version := _peek(content).format) != FORMAT:
                raise ConfigurationError(
                    f"The archive has the format {version}, and this version of zeroeventhub "
                    f"reads {FORMAT}: upgrade it."
                )
            return _decode(content)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"The archive's manifest cannot be read ({error}): this is not an archive, or "
                "another program has changed it."
            ) from error


class _Format(msgspec.Struct):
    """The field of a manifest that is read first, to know whether the rest can be read."""

    format: int = FORMAT


_encode = msgspec.json.Encoder().encode
_peek = msgspec.json.Decoder(_Format).decode
_decode = msgspec.json.Decoder(Manifest).decode

_DIGEST = b"blake2b"
"""The name of a manifest's last field: a digest of everything before that name."""


def _digest_field(content: bytes) -> bytes:
    """Return the last field of a manifest, given the bytes before that field's name."""
    return b'%b": "%b"\n}' % (_DIGEST, digest_of(content).encode())


_FOLDER, _ENDING = "manifest", ".json"

_KEPT = 10
"""How many generations are kept, however old they are."""


def newest_manifest(objects: Objects, known: Manifest) -> Manifest:
    """Return the newest manifest, which is `known` or follows it; refuse a damaged one.

    Raises:
        Unavailable: the store has neither, and what the archive may lack must not be trimmed.
    """
    names = objects.names(_FOLDER, _name(known.generation - 1) if known.generation else "")
    manifests = [name for name in names if name.endswith(_ENDING)]
    if not manifests and known.generation:
        raise Unavailable(
            "The archive lacks the newest manifest that this process knows: its files are lost, or "
            "its folder is not mounted.",
            retry_after=60,
        )
    if not manifests or manifests[-1] == _name(known.generation):
        return known
    path = f"{_FOLDER}/{manifests[-1]}"
    try:
        content = objects.read(path)
    except FileNotFoundError:
        raise Unavailable("The archive's manifest has just been replaced.") from None
    before, digest, _ = content.rpartition(_DIGEST)
    # Earlier versions wrote no digest.
    if digest and content != before + _digest_field(before):
        raise damaged(path)
    return Manifest.decode(content)


def create_manifest(objects: Objects, manifest: Manifest) -> bool:
    """Create the next generation unless it exists; return whether it is the newest now.

    Of two processes that add to the archive at once, one gets False and has to read the newest
    manifest again; this needs neither a clock nor a lock of the store. False may also mean that
    another process has already continued from this manifest, or that the store received the
    request twice because its first answer was lost.
    """
    name = _name(manifest.generation)
    if not objects.create(f"{_FOLDER}/{name}", manifest.encode()):
        return False
    # If this process was suspended until this generation was replaced and deleted, it has created
    # a manifest that no reader reads.
    return not objects.names(_FOLDER, name)


def delete_old_manifests(objects: Objects, newest: Manifest, grace: timedelta) -> None:
    """Delete manifests that are older than the grace time, except for the last generations.

    Incomplete ones go as well.
    """
    before = ago(grace)
    highest = _name(max(newest.generation - _KEPT, 0))
    old = [name for name, created in objects.ages(_FOLDER) if name < highest and created < before]
    objects.delete([f"{_FOLDER}/{name}" for name in sorted(old)])
    objects.sweep(_FOLDER, before)


def _name(generation: int) -> str:
    return f"{generation:012}{_ENDING}"

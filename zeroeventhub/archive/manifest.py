"""The manifest of an archive: which segments there are. Each generation is complete in itself."""

from bisect import bisect_left
from datetime import datetime

import msgspec

from zeroeventhub.errors import ConfigurationError

__all__ = ["FORMAT", "Erasure", "Manifest", "Removed", "Segment"]

FORMAT = 1
"""The version of the form of manifests and segments."""


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe a segment: the events of all partitions in a closed range of positions.

    Attributes:
        name: of its file; no other segment ever has it.
        after: the position behind which it begins.
        upto: the position at which it ends.
        places: how many positions in it have an event, or had one.
        events: how many events there are.
        size: how many bytes the file has.
        sha256: of the file, in hexadecimal digits.
        footer: how many bytes at the end of the file tell where the rest is.
        footer_check: a checksum of them.
        last: the cursor behind the last event, by which another history is noticed.
        earliest: the earliest time of an event; None where none has a time.
        latest: the latest one.
    """

    name: str
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


class Removed(msgspec.Struct, frozen=True):
    """Name a file that no manifest needs any more, and say since when.

    Attributes:
        name: of the segment.
        since: the moment at which a manifest without it was made.
    """

    name: str
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
        """Return the cursor behind the last event; None if there is none."""
        return self.segments[-1].last if self.segments else None

    def at(self, position: int) -> int:
        """Return the index of the segment that covers a position, or of the next one."""
        return bisect_left(self.segments, position, key=lambda segment: segment.upto)

    def encode(self) -> bytes:
        """Write the manifest."""
        return msgspec.json.format(_encode(self), indent=1)

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
                "changed by somebody else."
            ) from error


class _Format(msgspec.Struct):
    """Hold what has to be known of a manifest before anything else."""

    format: int = FORMAT


_encode = msgspec.json.Encoder().encode
_peek = msgspec.json.Decoder(_Format).decode
_decode = msgspec.json.Decoder(Manifest).decode

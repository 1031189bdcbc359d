"""An archive: read its newest manifest and parts of its segments, add and replace segments."""

import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from hashlib import blake2b, sha256
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from zeroeventhub.archive.cache import DiskCache, Memory
from zeroeventhub.archive.group import Footer, Group, Places
from zeroeventhub.archive.manifest import (
    Erasure,
    Manifest,
    Manifests,
    Removed,
    Segment,
    is_whole,
)
from zeroeventhub.archive.objects import Objects, damaged
from zeroeventhub.archive.writing import Draft, Made, without
from zeroeventhub.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "FOOTER",
    "PLACES",
    "Archive",
]

FOOTER, PLACES = "footer", "places"
"""The parts of a segment other than its numbered row groups."""

_Held = TypeVar("_Held", Footer, Group, Places)

_FOLDER = "segments"
_FILE, _PLACES = ".parquet", ".places"

_log = logging.getLogger("zeroeventhub.archive")

_MEBIBYTE = 1024 * 1024


class Archive:
    """Store the history of one feed in a folder or an object store.

    Example:
        archive = Archive("s3://bucket/orders", cache="/var/cache/orders")
        feed = TableFeed(orders, data="data", retention=Retention(), archive=archive)
        feed.bind(engine).seal()

    Args:
        store: a local folder, a URL such as `s3://bucket/orders`, or an obstore store, which has
            its own credentials.
        cache: a local folder for fetched parts, which the processes of this machine may share;
            None for a cache in memory only.
        cache_bytes: bytes of that folder, roughly; 1 GiB by default.
        memory_bytes: bytes in memory, unpacked; 64 MiB by default.
        grace: how long replaced files remain for readers of an older manifest, and files of no
            manifest for their writers; a day by default.
        look_seconds: seconds between two requests for a newer manifest while the archive is read;
            1 or more, 60 by default.
        erasable: whether events may be erased after they were published; if so, the feed marks no
            page as immutable.
        shared: how readers with access to everything may read the files themselves, in bulk:
            "signed" for URLs that the store signs, or the URL prefix of the files, such as
            `https://cdn.example/orders` or `file:///shared/orders`; None not to share files.
        shared_for: how long a signed URL is valid, an hour by default; at most the `grace`.

    Raises:
        ConfigurationError: the store does not exist, cannot share its files in this way, or
            `look_seconds` is too small.
    """

    def __init__(
        self,
        store: "str | Path | ObjectStore | Objects",
        *,
        cache: str | Path | None = None,
        cache_bytes: int = 1024 * _MEBIBYTE,
        memory_bytes: int = 64 * _MEBIBYTE,
        grace: timedelta = timedelta(days=1),
        look_seconds: float = 60.0,
        erasable: bool = False,
        shared: str | None = None,
        shared_for: timedelta = timedelta(hours=1),
    ) -> None:
        if look_seconds < 1:
            raise ConfigurationError("Archive.look_seconds has to be 1 or more.")
        self.objects = (
            store if isinstance(store, Objects) else Objects(store, private=shared is None)
        )
        """The objects in the store."""
        self._manifests = Manifests(self.objects)
        _check_shared(shared, self.objects)
        self._shared = shared
        self._shared_for = min(shared_for, grace)
        self._memory = Memory(memory_bytes)
        # Archives that are given one folder keep apart.
        own = blake2b(repr(self.objects.store).encode(), digest_size=8).hexdigest()
        self._disk = None if cache is None else DiskCache(Path(cache) / own, cache_bytes)
        self._grace = grace
        self._look_seconds = look_seconds
        self.erasable = erasable
        """Whether events may be erased."""
        self._looked_at: float | None = None
        self._lock = Lock()
        self.manifest = Manifest()
        """The newest manifest that is known."""

    @property
    def is_stale(self) -> bool:
        """Return whether the known manifest is old enough to look for a newer one."""
        return self._looked_at is None or monotonic() - self._looked_at > self._look_seconds

    def look(self) -> Manifest:
        """Fetch the newest manifest.

        Raises:
            Unavailable: the store did not answer.
        """
        known = self.manifest
        found = self._manifests.newest(known)
        with self._lock:
            if found.generation > self.manifest.generation:
                self.manifest = found
            self._looked_at = monotonic()
        self._forget(known, found)
        return self.manifest

    def refresh(self) -> Manifest:
        """Fetch the newest manifest; if that fails, keep the known one.

        Raises:
            Unavailable: the store did not answer, and no manifest is known.
        """
        try:
            return self.look()
        except Unavailable as error:
            if not self.manifest.generation:
                raise
            _log.warning("The archive is read by a manifest that may be old: %s", error)
            self._looked_at = monotonic()
            return self.manifest

    @property
    def is_shared(self) -> bool:
        """Return whether readers can read the files themselves."""
        return self._shared is not None

    def url(self, segment: Segment) -> str:
        """Return the URL of a segment's file for readers.

        Raises:
            ConfigurationError: files are not shared.
            Unavailable: the store had to sign the URL, and did not answer.
        """
        path, _ = _paths(segment.name)
        if self._shared is None:
            raise ConfigurationError("The files of this archive are not shared: Archive(shared=…).")
        if self._shared == SIGNED:
            return self.objects.signed(path, self._shared_for)
        return f"{self._shared.rstrip('/')}/{path}"

    def sealed(self) -> int:
        """Return the position up to which all events are in the archive, by its newest manifest.

        The table may be trimmed up to it.
        """
        return self.look().sealed

    def expect(self, feed: str) -> None:
        """Refuse to serve a feed from the archive of another one.

        Args:
            feed: the digest of how the feed makes its events, to compare with the manifest's.

        Raises:
            ConfigurationError: the archive belongs to another feed.
        """
        if self.manifest.feed not in {"", feed}:
            raise ConfigurationError(
                "The archive belongs to another feed, or to this one before a change of its table, "
                "its partitions or the form of its events: give each feed an archive of its own, "
                "and a new one to a feed whose events are made in another way."
            )

    def held(self, segment: Segment, part: str | int) -> Any:
        """Return a part of a segment that is in memory; None if it is not.

        Args:
            segment: the segment.
            part: FOOTER, PLACES, or the number of a row group.
        """
        return self._memory.get((segment.name, part))

    def load_footer(self, segment: Segment) -> Footer:
        """Fetch the index of a segment.

        Raises:
            Unavailable: the store did not answer, or the segment has just been replaced.
        """
        content = self._part(
            segment,
            FOOTER,
            lambda found: is_whole(found, segment.footer_digest, segment.footer_check),
            start=segment.size - segment.footer,
            length=segment.footer,
        )
        return self._hold(segment, FOOTER, Footer(content, segment.size))

    def load_group(self, segment: Segment, footer: Footer, number: int) -> Group:
        """Fetch a row group of a segment.

        Raises:
            Unavailable: the store did not answer, or the segment has just been replaced.
        """
        entry = footer.entries[number]
        content = self._part(
            segment,
            number,
            lambda found: is_whole(found, entry.digest, entry.check),
            start=entry.start,
            length=entry.length,
        )
        return self._hold(segment, number, footer.group(number, content))

    def load_places(self, segment: Segment) -> Places:
        """Fetch the index from position to partition of a segment with several partitions.

        Raises:
            Unavailable: the store did not answer, or the segment has just been replaced.
        """
        content = self._part(segment, PLACES, lambda found: is_whole(found, segment.places_digest))
        return self._hold(segment, PLACES, Places(content))

    def content(self, segment: Segment) -> bytes:
        """Fetch the whole file of a segment from the store, without the caches.

        Raises:
            Unavailable: the store did not answer, or the file is damaged.
        """
        path, _ = _paths(segment.name)
        content = self._fetched(path)
        if sha256(content).hexdigest() != segment.sha256:
            raise damaged(path)
        return content

    def draft(self) -> Draft:
        """Begin a segment."""
        return Draft()

    def add(self, made: Made, feed: str) -> bool:
        """Add a segment after the last one.

        Args:
            made: the segment.
            feed: the digest of the segment's feed, as for `expect`.

        Returns:
            Whether it was added. If not, another process has added some of its events: read again
            where the archive ends.

        Raises:
            Unavailable: the store did not answer; the segment was added, or it was not.
        """
        self._upload(made)
        known = self.manifest
        if made.segment.after == known.sealed and self._advance(
            known, segments=(*known.segments, made.segment), feed=feed
        ):
            return True
        return self._has(made)

    def replace(self, made: Made, name: str, events: int) -> bool:
        """Replace a segment by one that covers the same positions.

        Args:
            made: the new segment.
            name: the name of the old one.
            events: how many events the old one has more.

        Returns:
            Whether it was replaced; if not, another process has replaced it before.
        """
        self._upload(made)
        known = self.manifest
        segments = tuple(made.segment if one.name == name else one for one in known.segments)
        now = datetime.now(UTC)
        if segments != known.segments and self._advance(
            known,
            segments=segments,
            removed=(*known.removed, Removed(name, now)),
            erasures=(*known.erasures, Erasure(now, events)),
        ):
            return True
        return self._has(made)

    def _has(self, made: Made) -> bool:
        """Return whether the newest manifest lists a segment; if not, no later one will.

        A retry needs a new file, as another process may already treat this one as abandoned.
        """
        if any(made.segment.name == one.name for one in self.look().segments):
            return True
        self.objects.delete(_paths(made.segment.name))
        return False

    def erase(self, ids: Collection[str], keys: Collection[str], bare: Callable[[int], str]) -> int:
        """Replace segments by ones without some events.

        After an interruption, call it again: it continues with the segments that are left.

        Args:
            ids: erase the events with these ids.
            keys: erase the events of these keys as well.
            bare: makes the cursor after an erased event from its position.

        Returns:
            How many events were erased.

        Raises:
            Unavailable: the store did not answer; do it again.
        """
        erased = 0
        for name in [segment.name for segment in self.look().segments]:
            # Until it is done, or nothing is left to do; another process may be sealing.
            while segment := next(
                (one for one in self.manifest.segments if one.name == name), None
            ):
                if not keys and not self._may_have(segment, ids):
                    break
                made, events = without(self.content(segment), segment, ids, keys, bare)
                if made is None:
                    break
                if self.replace(made, name, events):
                    erased += events
        return erased

    def _may_have(self, segment: Segment, ids: Collection[str]) -> bool:
        """Return whether some id is between the lowest and the highest of a row group."""
        return any(
            one.lowest <= identity <= one.highest
            for one in self.load_footer(segment).entries
            if one.lowest is not None and one.highest is not None
            for identity in ids
        )

    def tidy(self) -> list[str]:
        """Delete files that no process needs any more, and return their names.

        These are replaced segments and those of sealers that died, once they are older than the
        grace time, and old manifests.
        """
        newest, now = self.look(), datetime.now(UTC)
        needed = {segment.name for segment in newest.segments}
        waiting = {one.name for one in newest.removed if one.since > now - self._grace}
        left = [
            file
            for file, created in self.objects.ages(_FOLDER)
            if file.partition(".")[0] not in needed | waiting and created < now - self._grace
        ]
        kept = tuple(one for one in newest.removed if one.name in waiting)
        # Advance before deleting: a suspended writer of one of these files then fails to add it.
        if left and not self._advance(newest, removed=kept):
            return []
        self.objects.delete([f"{_FOLDER}/{file}" for file in left])
        self.objects.sweep(_FOLDER, now - self._grace)
        self._manifests.tidy(self.manifest, self._grace)
        return sorted(left)

    def _advance(self, known: Manifest, **changes: Any) -> bool:
        """Create the next generation of a manifest; return whether it is the newest now.

        Args:
            known: the manifest to change; readers may have found a newer one since.
            changes: the changed fields.
        """
        following = msgspec.structs.replace(known, generation=known.generation + 1, **changes)
        if not self._manifests.create(following):
            return False
        with self._lock:
            self.manifest = following
        self._forget(known, following)
        return True

    def _upload(self, made: Made) -> None:
        """Create the files of a segment, before any manifest names them."""
        name, places = _paths(made.segment.name)
        if made.places is not None:
            self.objects.create(places, made.places)
        self.objects.create(name, made.content)

    def _forget(self, before: Manifest, now: Manifest) -> None:
        """Drop replaced segments from the caches, also those left by an earlier process."""
        names = {segment.name for segment in now.segments}
        gone = {segment.name for segment in before.segments} - names
        if gone:
            self._memory.clear()
        if self._disk is not None and (gone or not before.generation):
            self._disk.keep_only(names)

    def _hold(self, segment: Segment, part: str | int, found: _Held) -> _Held:
        self._memory.keep((segment.name, part), found)
        return found

    def _part(
        self,
        segment: Segment,
        part: str | int,
        fits: Callable[[bytes], bool],
        *,
        start: int = 0,
        length: int | None = None,
    ) -> bytes:
        """Read a part of a segment, from the disk's cache or from the store.

        Args:
            segment: the segment.
            part: as for `held`.
            fits: checks bytes by their digest.
            start: the part's offset in its file.
            length: its bytes; None for the whole file.
        """
        name, path = f"{segment.name}.{part}", _paths(segment.name)[part == PLACES]
        found = None if self._disk is None else self._disk.get(name)
        if found is not None and not fits(found):
            _log.warning("%s in the archive's cache is not what was written: fetch it anew.", name)
            found = None
        if found is None:
            found = self._fetched(path, start, length)
            if not fits(found):
                raise damaged(path)
            if self._disk is not None:
                self._disk.keep(name, found)
        return found

    def _fetched(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.objects.read(path, start, length)
        except FileNotFoundError:
            self._looked_at = None
            _log.warning("The archive's file %s is not there: it was replaced, or deleted.", path)
            raise Unavailable(
                "A file of the archive is not there: it was replaced just now, or deleted.",
                retry_after=1,
            ) from None


def _paths(name: str) -> list[str]:
    """Return the paths of a segment's files: its events, and the index of its positions."""
    return [f"{_FOLDER}/{name}{_FILE}", f"{_FOLDER}/{name}{_PLACES}"]


SIGNED = "signed"
"""The value of `shared` for URLs that the store signs."""


def _check_shared(shared: str | None, objects: Objects) -> None:
    """Refuse a way to share files that cannot work; see `Archive`."""
    if shared == SIGNED:
        if not objects.signs:
            raise ConfigurationError(
                "This store does not sign URLs: share its files by a URL, or not at all."
            )
    elif shared is not None and urlsplit(shared).scheme not in {"file", "http", "https"}:
        raise ConfigurationError(
            f'The files of an archive are shared by a URL of file, http or https, or as "{SIGNED}".'
        )

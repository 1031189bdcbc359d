"""An archive: its newest manifest, what has been read of its segments, and how more are added."""

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
"""The parts of a segment beside its row groups, which have numbers."""

_Held = TypeVar("_Held", Footer, Group, Places)

_FOLDER = "segments"
_FILE, _PLACES = ".parquet", ".places"

_log = logging.getLogger("zeroeventhub.archive")

_MEBIBYTE = 1024 * 1024


class Archive:
    """Keep the history of one feed in a folder or an object store.

    Example:
        archive = Archive("s3://bucket/orders", cache="/var/cache/orders")
        feed = TableFeed(orders, data="data", retention=Retention(), archive=archive)
        feed.bind(engine).seal()

    Args:
        store: a local folder, a URL such as `s3://bucket/orders`, or a store of obstore's, which
            has credentials of its own.
        cache: a local folder for what was fetched, which the processes of this machine may share;
            None to fetch again what is no longer in memory.
        cache_bytes: bytes kept in that folder, about; 1 GiB by default.
        memory_bytes: bytes kept in memory, unpacked; 64 MiB by default.
        grace: how long files that were replaced stay for their readers, and how long files that no
            manifest names stay for their writers; a day by default.
        look_seconds: seconds between two looks for a newer manifest while the archive is read; from
            1 on, 60 by default.
        erasable: whether events may be erased after they were published, so that no page is marked
            as one that never changes.
        shared: how readers that may read everything reach the files themselves, to read in bulk:
            "signed" for URLs that the store signs, or what stands before a file's name in its URL,
            such as `https://cdn.example/orders` or `file:///shared/orders`; None if they do not.
        shared_for: how long a signed URL is good, an hour by default; no longer than the `grace`.

    Raises:
        ConfigurationError: there is no such store, its files cannot be shared in this way, or
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
        """What is in the store."""
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
        """Tell whether there may be a newer manifest than the one that is known."""
        return self._looked_at is None or monotonic() - self._looked_at > self._look_seconds

    def look(self) -> Manifest:
        """Look for the newest manifest.

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
        """Look for the newest manifest, and go on with the one that is known if that fails.

        Raises:
            Unavailable: the store did not answer, and none is known.
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
        """Tell whether readers reach the files themselves."""
        return self._shared is not None

    def url(self, segment: Segment) -> str:
        """Return the URL by which readers reach the file of a segment.

        Raises:
            ConfigurationError: files are not shared.
            Unavailable: the store did not answer, which was asked to sign it.
        """
        path, _ = _paths(segment.name)
        if self._shared is None:
            raise ConfigurationError("The files of this archive are not shared: Archive(shared=…).")
        if self._shared == SIGNED:
            return self.objects.signed(path, self._shared_for)
        return f"{self._shared.rstrip('/')}/{path}"

    def sealed(self) -> int:
        """Return the position up to which all events are in the archive, by its newest manifest.

        What is at or below it may be taken out of the table.
        """
        return self.look().sealed

    def expect(self, feed: str) -> None:
        """Refuse to serve a feed from the archive of another one.

        Args:
            feed: a digest of what makes its events, as the manifest has it.

        Raises:
            ConfigurationError: the archive is of another feed.
        """
        if self.manifest.feed not in {"", feed}:
            raise ConfigurationError(
                "The archive belongs to another feed, or to this one when its table, partitions or "
                "the form of its events were others: give each feed an archive of its own, and a "
                "new one to a feed whose events are made in another way."
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
        """Fetch where the positions of a segment of several partitions are.

        Raises:
            Unavailable: the store did not answer, or the segment has just been replaced.
        """
        content = self._part(segment, PLACES, lambda found: is_whole(found, segment.places_digest))
        return self._hold(segment, PLACES, Places(content))

    def content(self, segment: Segment) -> bytes:
        """Fetch the whole file of a segment, past all that is kept.

        Raises:
            Unavailable: the store did not answer, or the file is not what was written.
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
            feed: the feed whose events are in it, in the digest of `expect`.

        Returns:
            Whether it was added. If not, another process has added what is in it, or a part of it:
            look where the archive ends now.

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
        """Put a segment in the place of one that covers the same positions.

        Args:
            made: the new segment.
            name: of the old one.
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
        """Tell whether the newest manifest names a segment; one that it does not is never named.

        To try again with the same file would be wrong: it may be taken for abandoned by now.
        """
        if any(made.segment.name == one.name for one in self.look().segments):
            return True
        self.objects.delete(_paths(made.segment.name))
        return False

    def erase(self, ids: Collection[str], keys: Collection[str], bare: Callable[[int], str]) -> int:
        """Put segments without some events in the place of those that have them.

        Stopped anywhere, it can be done again: what is erased is erased.

        Args:
            ids: of the events.
            keys: of more of them.
            bare: makes the cursor after an event that is no longer there, of its position.

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
        """Tell whether an id lies between the lowest and the highest of a row group."""
        return any(
            one.lowest <= identity <= one.highest
            for one in self.load_footer(segment).entries
            if one.lowest is not None and one.highest is not None
            for identity in ids
        )

    def tidy(self) -> list[str]:
        """Delete files that are needed no more, and return their names.

        These are segments that were replaced and those of sealers that died, once they are older
        than the grace time, and manifests of long ago.
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
        # In this order: who was asleep with one of these files finds that its manifest is late.
        if left and not self._advance(newest, removed=kept):
            return []
        self.objects.delete([f"{_FOLDER}/{file}" for file in left])
        self.objects.sweep(_FOLDER, now - self._grace)
        self._manifests.tidy(self.manifest, self._grace)
        return sorted(left)

    def _advance(self, known: Manifest, **changes: Any) -> bool:
        """Make the next generation of a manifest; return whether it is the newest now.

        Args:
            known: the one that the changes were made to; readers may have found a newer one since.
            changes: by name.
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
        """Keep nothing of segments that were replaced, also by a process of before."""
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
            fits: whether bytes are what was written there.
            start: where it begins in its file.
            length: how many bytes it has; None for the whole file.
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
    """Name the files of a segment: that of its events, and the one beside it."""
    return [f"{_FOLDER}/{name}{_FILE}", f"{_FOLDER}/{name}{_PLACES}"]


SIGNED = "signed"
"""Says that files are shared by URLs that the store signs."""


def _check_shared(shared: str | None, objects: Objects) -> None:
    """Refuse a way by which no reader would reach files; see `Archive`."""
    if shared == SIGNED:
        if not objects.signs:
            raise ConfigurationError(
                "This store does not sign URLs: share its files by a URL, or not at all."
            )
    elif shared is not None and urlsplit(shared).scheme not in {"file", "http", "https"}:
        raise ConfigurationError(
            f'The files of an archive are shared by a URL of file, http or https, or as "{SIGNED}".'
        )

"""An archive: read its newest manifest and parts of its segments, add and replace segments."""

import logging
import math
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from hashlib import blake2b, sha256
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from zeroeventhub.archive.cache import DiskCache, MemoryCache
from zeroeventhub.archive.group import Footer, Group, Places
from zeroeventhub.archive.manifest import (
    Description,
    Erasure,
    Manifest,
    Removed,
    Segment,
    create_manifest,
    delete_old_manifests,
    is_whole,
    newest_manifest,
)
from zeroeventhub.archive.objects import Objects, damaged
from zeroeventhub.archive.segment_writer import SegmentWriter, WrittenSegment, merged, without
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.times import ago

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FOOTER, PLACES = "footer", "places"
"""The parts of a segment other than its numbered row groups."""

SIGNED = "signed"
"""The value of `shared` for URLs that the store signs."""

_FOLDER = "segments"

_MEBIBYTE = 1024 * 1024

_log = logging.getLogger("zeroeventhub.archive")


class Archive:
    """Store the history of one feed in a folder or an object store.

    Example:
        archive = Archive("s3://bucket/orders", cache="/var/cache/orders")
        feed = TableFeed(orders, data="data", retention=Retention(), archive=archive)
        feed.bind(engine).seal()

    Args:
        store: a local folder, a URL such as `s3://bucket/orders`, or a store of obstore's, such as
            one with credentials.
        cache: a local folder for fetched parts, which the processes of this machine may share;
            None for a cache in memory only.
        cache_bytes: bytes of that folder, roughly; 1 GiB by default.
        memory_bytes: bytes in memory, unpacked; 64 MiB by default.
        grace: how long replaced files stay for readers of an older manifest, and files that no
            manifest lists for their writers; a day by default.
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
            `look_seconds` or `grace` is out of its range.
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
        if not 1 <= look_seconds < math.inf:
            raise ConfigurationError("Archive.look_seconds has to be 1 or more, and not infinite.")
        ago(grace)  # refuses one that is too long
        self.objects = (
            store if isinstance(store, Objects) else Objects(store, private=shared is None)
        )
        """The objects in the store."""
        if shared == SIGNED and not self.objects.can_sign:
            raise ConfigurationError(
                "This store does not sign URLs: give the URL prefix of its files as `shared`, or "
                "None."
            )
        if shared not in {None, SIGNED} and urlsplit(shared).scheme not in {
            "file",
            "http",
            "https",
        }:
            raise ConfigurationError(
                f'Archive.shared is the prefix of a URL of file, http or https, or "{SIGNED}".'
            )
        self._shared = shared
        self.is_shared = shared is not None
        """Whether readers can read the files themselves."""
        self._shared_for = min(shared_for, grace)
        self._memory = MemoryCache(memory_bytes)
        # Archives with the same cache folder have one of their own in it.
        own = blake2b(self.objects.name.encode(), digest_size=8).hexdigest()
        self._disk = None if cache is None else DiskCache(Path(cache) / own, cache_bytes)
        self._grace = grace
        self._look_seconds = look_seconds
        self.erasable = erasable
        """Whether events may be erased."""
        self._looked_at: float | None = None
        self._lock = Lock()
        self.manifest = Manifest()
        """The newest known manifest."""

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
        found = newest_manifest(self.objects, known)
        self._learn(known, found)
        self._looked_at = monotonic()
        return self.manifest

    def refresh(self) -> Manifest:
        """Fetch the newest manifest; if the store does not answer, keep the one known, if any."""
        try:
            return self.look()
        except Unavailable as error:
            if not self.manifest.generation:
                raise
            text = "The archive is read with a manifest that may be out of date: %s"
            _log.warning(text, str(error))
            self._looked_at = monotonic()
            return self.manifest

    def sealed(self) -> int:
        """Fetch the newest manifest; return the position up to which the table may be trimmed."""
        return self.look().sealed

    def expect(self, feed: str) -> None:
        """Refuse the archive of another feed than the one that a digest identifies."""
        if self.manifest.feed not in {"", feed}:
            raise ConfigurationError(
                "The archive belongs to another feed, or to this one before a change of its table, "
                "its partitions or the form of its events: give each feed an archive of its own, "
                "and a new one after such a change."
            )

    def url(self, segment: Segment) -> str:
        """Return the URL of a segment's file for readers."""
        path = _path(segment)
        if self._shared is None:
            raise ConfigurationError("The files of this archive are not shared: Archive(shared=…).")
        if self._shared == SIGNED:
            return self.objects.signed(path, self._shared_for)
        return f"{self._shared.rstrip('/')}/{path}"

    def held(self, segment: Segment, part: str | int) -> Any:
        """Return a part of a segment if it is in memory, else None; see `load`."""
        return self._memory.get((segment.name, part))

    def load(self, segment: Segment, part: str | int) -> Any:
        """Return a part of a segment, from memory, from the cache on disk, or from the store.

        Args:
            segment: the segment.
            part: FOOTER for a Footer, PLACES for the Places of a segment with several partitions,
                or a number for the Group of that number.

        Raises:
            Unavailable: the store did not answer, or the segment has just been replaced.
        """
        if (found := self.held(segment, part)) is not None:
            return found
        if part == FOOTER:
            digest, check = segment.footer_digest, segment.footer_check
            start, length = segment.size - segment.footer, segment.footer
            content = self._part(segment, part, digest, check, start=start, length=length)
            found = Footer(content, segment.size)
        elif part == PLACES:
            found = Places(self._part(segment, part, segment.places_digest, None))
        else:
            number = int(part)
            footer: Footer = self.load(segment, FOOTER)
            entry = footer.entries[number]
            start, length = entry.start, entry.length
            content = self._part(
                segment, part, entry.digest, entry.check, start=start, length=length
            )
            found = Group(footer, number, content)
        found = self._memory.keep((segment.name, part), found)
        known = self.manifest
        at = known.at(segment.upto)
        if segment not in known.segments[at : at + 1]:  # it was replaced meanwhile
            self._drop([segment.name], {one.name for one in known.segments})
        return found

    def content(self, segment: Segment) -> bytes:
        """Fetch the whole file of a segment from the store, not from a cache; check its digest."""
        path = _path(segment)
        content = self._fetched(path)
        if sha256(content).hexdigest() != segment.sha256:
            raise damaged(path)
        return content

    def segment_writer(self) -> SegmentWriter:
        """Begin a segment."""
        return SegmentWriter()

    def add(
        self, written: WrittenSegment, feed: str, description: Description | None = None
    ) -> bool:
        """Add a segment of a feed after the last one; return whether it was added.

        If it was not, another process has added some of its events: read again where the archive
        ends. Without a description, the archive keeps the one that it has.

        Raises:
            Unavailable: the store did not answer; whether the segment was added is unknown.
        """
        known, segment = self.manifest, written.segment
        if segment.after != known.sealed:
            return False
        segments, description = (*known.segments, segment), description or known.description
        return self._publish(known, written, segments=segments, feed=feed, description=description)

    def describe(self, description: Description) -> None:
        """Say what has to be known of the feed to publish it without its table."""
        # If another process advances first, the next seal describes the feed.
        self._advance(self.manifest, description=description)

    def continue_after(self, skipped: int) -> int:
        """Choose the position after which a restored table goes on; return it.

        Args:
            skipped: how many positions stay free after the last sealed one, or after where an
                earlier restored table went on, whose events may be lost as well.
        """
        known = self.look()
        while True:
            position = max(known.sealed, known.continued) + skipped
            if self._advance(known, continued=position):
                return position
            known = self._successor(known)

    def replace(self, written: WrittenSegment, name: str, events: int) -> bool:
        """Replace the segment of a name by one of the same positions without erased events.

        Returns:
            Whether it was replaced; if not, another process has replaced the old one.
        """
        known, now = self.manifest, datetime.now(UTC)
        segments = tuple(written.segment if one.name == name else one for one in known.segments)
        if segments == known.segments:
            return False
        removed = (*known.removed, Removed(name, now))
        erasures = (*known.erasures, Erasure(now, events))
        return self._publish(known, written, segments=segments, removed=removed, erasures=erasures)

    def merge(self, events: int, size: int) -> None:
        """Replace the last segments by one, where each has no more events than those after it.

        So an event is rewritten only when its segment has doubled, and the archive has few small
        segments, however often it is sealed. The new one has at most that number of `events`, and
        JSON of that `size`.
        """
        known, last = self.manifest, list[Segment]()
        places = 0
        for segment in reversed(known.segments):
            footer: Footer = self.load(segment, FOOTER)
            size -= sum(entry.size for entry in footer.entries)
            if size < 0 or (last and segment.places > min(places, events - places)):
                break
            last.insert(0, segment)
            places += segment.places
        if len(last) > 1:
            written = merged(map(self.content, last), last)
            before = ago(self._grace - self._shared_for)
            # Files that are younger stay for readers of this manifest by their age.
            old = [one for one in last if one.written is None or one.written < before]
            removed = (*known.removed, *(Removed(one.name, datetime.now(UTC)) for one in old))
            segments = (*known.segments[: -len(last)], written.segment)
            self._publish(known, written, segments=segments, removed=removed)

    def _publish(self, known: Manifest, written: WrittenSegment, **changes: Any) -> bool:
        """Create the files of a segment, and then the manifest that lists it after a known one.

        A `tidy` whose clock is ahead may delete the files as abandoned meanwhile. It creates a
        manifest first, in place of the one of this process, which then adds nothing.

        Returns:
            Whether the newest manifest lists the segment; if not, its files are deleted.

        Raises:
            Unavailable: the store did not answer, or does not list the newest manifest.
        """
        segment = written.segment
        # The larger one first: a disk without room for it is not filled by more of the others.
        self.objects.create(_path(segment), written.content)
        if written.places is not None:
            self.objects.create(_path(segment, PLACES), written.places)
        if self._advance(known, **changes):
            return True
        # A manifest that is not listed yet may list the segment.
        if any(segment.name == one.name for one in self._successor(known).segments):
            return True
        # A retry writes new files, as another process may already treat these as abandoned.
        self.objects.delete([_path(segment), _path(segment, PLACES)])
        return False

    def erase(
        self, ids: Collection[str], keys: Collection[str], cursor_at: Callable[[int], str]
    ) -> int:
        """Replace segments by ones without some events; return how many events were erased.

        After an interruption, call it again: it continues with the segments that are left.
        `cursor_at` makes the cursor after an erased event from its position.
        """
        erased, examined = 0, set[str]()
        self.look()
        # Until all segments are without such events; another process may be sealing or merging.
        while left := [one for one in self.manifest.segments if one.name not in examined]:
            for segment in left:
                examined.add(segment.name)
                if not keys and not self._may_have(segment, ids):
                    continue
                written, events = without(self.content(segment), segment, ids, keys, cursor_at)
                if written is None:
                    continue
                if self.replace(written, segment.name, events):
                    erased += events
                    examined.add(written.segment.name)
                else:
                    examined.remove(segment.name)
        return erased

    def _may_have(self, segment: Segment, ids: Collection[str]) -> bool:
        """Return whether an id is between the lowest and the highest of a row group."""
        return any(
            one.lowest <= identity <= one.highest
            for one in self.load(segment, FOOTER).entries
            if one.lowest is not None
            for identity in ids
        )

    def tidy(self) -> list[str]:
        """Delete files that no process needs any more; return the names of the segments' files.

        These are old manifests, and segments that were replaced or never added, once they are older
        than the grace time.
        """
        newest, before = self.look(), ago(self._grace)
        if not newest.generation:  # the manifests may be lost, or have not been copied yet
            return []
        removed = tuple(one for one in newest.removed if one.since > before)
        needed = {one.name for one in newest.segments} | {one.name for one in removed}
        left = [
            file
            for file, created in self.objects.ages(_FOLDER)
            if file.partition(".")[0] not in needed and created < before
        ]
        # Advance before deleting: a suspended writer of one of these files then fails to add it.
        if left and not self._advance(newest, removed=removed):
            return []
        self.objects.delete([f"{_FOLDER}/{file}" for file in left])
        self.objects.sweep(_FOLDER, before)
        delete_old_manifests(self.objects, self.manifest, self._grace)
        return sorted(left)

    def _advance(self, known: Manifest, **changes: Any) -> bool:
        """Create the generation after a manifest; return whether it is the newest now."""
        following = msgspec.structs.replace(known, generation=known.generation + 1, **changes)
        if not create_manifest(self.objects, following):
            return False
        self._learn(known, following)
        return True

    def _successor(self, known: Manifest) -> Manifest:
        """Fetch the newest manifest, after one that could not be advanced.

        Raises:
            Unavailable: the store did not answer, or does not list what has taken the number.
        """
        newest = self.look()
        if newest.generation == known.generation:
            raise Unavailable("The archive's store lists no manifest that it has.", retry_after=60)
        return newest

    def _learn(self, known: Manifest, found: Manifest) -> None:
        """Keep a manifest unless another thread has found a newer one.

        Drop replaced segments from the caches, also those left by an earlier process.
        """
        with self._lock:
            if found.generation > self.manifest.generation:
                self.manifest = found
        names = {segment.name for segment in found.segments}
        gone = {segment.name for segment in known.segments} - names
        if gone or not known.generation:
            self._drop(gone, names)

    def _drop(self, gone: Collection[str], names: Collection[str]) -> None:
        """Drop segments from memory, and all but those of some names from the disk."""
        self._memory.drop(gone)
        if self._disk is not None:
            self._disk.keep_only(names)

    def _part(
        self,
        segment: Segment,
        part: str | int,
        digest: str,
        check: int | None,
        *,
        start: int = 0,
        length: int | None = None,
    ) -> bytes:
        """Read a part of a file, checked as `is_whole` does, from the cache or from the store."""
        name = f"{segment.name}.{part}"
        found = None if self._disk is None else self._disk.get(name)
        if found is not None and not is_whole(found, digest, check):
            _log.warning("%s in the archive's cache is damaged: fetch it again.", name)
            found = None
        if found is None:
            path = _path(segment, part)
            found = self._fetched(path, start, length)
            if not is_whole(found, digest, check):
                raise damaged(path)
            if self._disk is not None:
                self._disk.keep(name, found)
        return found

    def _fetched(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.objects.read(path, start, length)
        except FileNotFoundError:
            self._looked_at = None
            _log.warning("The archive's file %s is missing: it was replaced, or deleted.", path)
            raise Unavailable(
                "A file of the archive is missing: it was replaced just now, or deleted.",
                retry_after=1,
            ) from None


def _path(segment: Segment, part: str | int = FOOTER) -> str:
    """Return the path of the file that has a part of a segment."""
    return f"{_FOLDER}/{segment.name}.{'places' if part == PLACES else 'parquet'}"

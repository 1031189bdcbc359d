"""What was fetched from an archive is kept in memory and on the disk, within bounds."""

import os
from zlib import crc32

import pytest
from harness.archives import bare, made

from zeroeventhub.archive import Archive
from zeroeventhub.archive.cache import DiskCache
from zeroeventhub.archive.objects import Objects

EVENTS = 10_000


class Counting(Objects):
    """Objects that count how often something is fetched."""

    fetched = 0

    def read(self, path, start=0, length=None):
        """Read, and count it."""
        self.fetched += path.startswith("segments")
        return super().read(path, start, length)


def load(archive, segment):
    """Load the index and the first row group of a segment."""
    archive.load(segment, "footer")
    return archive.load(segment, 0)


def reopened(tmp_path, **options):
    """Return the archive as another process has it, and what it fetches from."""
    objects = Counting(tmp_path / "archive")
    archive = Archive(objects, cache=tmp_path / "cache", **options)
    archive.look()
    return archive, objects


def test_archives_that_share_a_folder_keep_apart(tmp_path):
    """Archives of different stores use different folders in one cache."""
    archive = Archive(tmp_path / "archive", cache=tmp_path / "cache")
    archive.add(made(0, 10), "feed")
    load(archive, *archive.look().segments)
    Archive(tmp_path / "other", cache=tmp_path / "cache").look()
    reopened(tmp_path)
    assert len([*(tmp_path / "cache").glob("*/*")]) == 2


def with_checksum(content):
    """Return a file of the cache with its checksum, which any program can compute."""
    return crc32(content).to_bytes(4) + content


HARMS = {
    "changed": lambda file, _: with_checksum(file[4:-9] + bytes([file[-9] ^ 1]) + file[-8:]),
    "cut": lambda file, _: with_checksum(file[4:-9]),
    "another": lambda _, another: another,
}
DAMAGES = {
    "of another checksum": lambda file, _: b"?" + file[1:],
    "without its end": lambda file, _: file[:-1],
    "empty": lambda *_: b"",
}
"""What is made of a file of the cache and of another one; damages do not fit their checksum."""


@pytest.mark.parametrize("part", ["footer", "0", "1", "places"])
@pytest.mark.parametrize("harm", [*HARMS, *DAMAGES])
def test_cache_that_another_program_writes_is_not_believed(tmp_path, caplog, part, harm):
    """A file of the cache that is damaged, or differs from the manifest, is fetched again."""
    writer = Archive(tmp_path / "archive")
    for after in (0, 10):
        writer.add(made(after, after + 10, partitions=2), "feed")

    def read():
        archive, objects = reopened(tmp_path)
        found = []
        for segment in archive.manifest.segments:
            places = archive.load(segment, "places")
            groups = [archive.load(segment, number) for number in (0, 1)]
            found += [group.event(index) for group in groups for index in range(5)]
            found += [places.below(at) for at in range(21)]
        return objects.fetched, found

    _, before = read()
    assert read() == (0, before)
    file, another = sorted((tmp_path / "cache").glob(f"*/*.{part}"))
    content = file.read_bytes()
    file.write_bytes((HARMS | DAMAGES)[harm](content, another.read_bytes()))
    assert read() == (1, before)
    warning = f"{file.name} in the archive's cache is damaged"
    assert (warning in caplog.text) is (harm in HARMS)
    assert file.read_bytes() == content
    assert read() == (0, before)
    file.unlink()
    file.mkdir()
    assert read() == (1, before)


def test_cache_keeps_what_was_used_last_within_its_bound(tmp_path):
    """The cache on disk drops the files that were not used for the longest."""
    fetching = Counting(tmp_path / "archive")
    archive = Archive(fetching, cache=tmp_path / "cache", cache_bytes=30_000, memory_bytes=0)
    for after in range(0, 6 * EVENTS, EVENTS):
        archive.add(made(after, after + EVENTS), "feed")
    segments = archive.look().segments
    for hour, segment in enumerate(segments):
        load(archive, segment)
        (folder,) = (tmp_path / "cache").iterdir()
        for file in folder.glob(f"{segment.name}.*"):
            os.utime(file, (hour * 3_600, hour * 3_600))
        load(archive, segments[0])
    assert fetching.fetched == 2 * len(segments)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 30_000 * 17 / 16
    other, objects = reopened(tmp_path)
    load(other, segments[0])
    load(other, segments[-1])
    assert objects.fetched == 0
    load(other, segments[1])
    assert objects.fetched > 0


def test_memory_keeps_what_was_used_last_within_its_bound(tmp_path):
    """A row group stays in memory while there is room, or while it is in use."""
    archive = Archive(tmp_path)
    archive.add(made(0, 4 * EVENTS), "feed")
    (segment,) = archive.look().segments
    weight = archive.load(segment, 0).weight
    archive = Archive(tmp_path, memory_bytes=int(3.5 * weight))
    archive.look()

    def at_hand(*asked):
        return [archive.held(segment, number) is not None for number in asked]

    for number in (0, 1, 2, 1, 2, 0):
        archive.load(segment, number)
    assert at_hand(2, 1, 0, 3) == [True, True, True, False]
    used = archive.held(segment, 2)
    assert at_hand(1, 0) == [True, True]
    archive.load(segment, 3)
    assert at_hand(0, 1, 2, 3) == [True] * 4
    del used
    assert at_hand(0, 1, 2, 3) == [True, True, False, True]
    archive.load(segment, 2)
    assert at_hand(2) == [True]


def test_part_in_use_is_found_although_another_reader_has_fetched_it_too(tmp_path):
    """Readers that fetch a part at once share it, until the last one has dropped it."""
    used = []

    class Meanwhile(Objects):
        def read(self, path, start=0, length=None):
            content = super().read(path, start, length)
            if path.startswith("segments") and len(used) < 2:
                used.append(None)
                used.append(archive.load(segment, "footer"))
            return content

    Archive(tmp_path).add(made(0, 10), "feed")
    archive = Archive(Meanwhile(tmp_path), memory_bytes=1)
    (segment,) = archive.look().segments
    own = archive.load(segment, "footer")
    del own
    assert archive.held(segment, "footer") is used[-1]
    used.clear()
    assert archive.held(segment, "footer") is None


def test_nothing_is_kept_of_segments_that_were_replaced(tmp_path):
    """No cache has a replaced segment, in this process, another one or a later one."""
    archives = [
        Archive(tmp_path / "archive", cache=tmp_path / name, erasable=True) for name in "abc"
    ]
    archives[0].add(made(0, 10, key=["ada", "bob"] * 5), "feed")
    archives[0].add(made(10, 20), "feed")
    for archive in archives:
        old, kept = archive.look().segments
        for segment in (old, kept):
            load(archive, segment)
    assert archives[0].erase([], ["ada"], lambda position: f"1-{position}") == 5
    archives[2] = Archive(tmp_path / "archive", cache=tmp_path / "c")
    for archive, name in zip(archives, "abc", strict=True):
        new, _ = archive.look().segments
        assert archive.held(old, 0) is None
        names = {file.name.partition(".")[0] for file in (tmp_path / name).glob("*/*")}
        assert old.name not in names
        assert kept.name in names
        assert [load(archive, new).event(index) is None for index in (0, 1)] == [True, False]


def test_nothing_is_kept_of_a_segment_that_is_replaced_while_it_is_fetched(tmp_path):
    """A part of a segment that arrives after the new manifest stays in no cache."""

    class Slow(Objects):
        def read(self, path, start=0, length=None):
            content = super().read(path, start, length)
            if path.startswith("segments"):
                other.erase([], ["ada"], bare)
                archive.look()
            return content

    other = Archive(tmp_path / "archive", erasable=True)
    other.add(made(0, 10, key=["ada", "bob"] * 5), "feed")
    archive = Archive(Slow(tmp_path / "archive"), cache=tmp_path / "cache")
    (old,) = archive.look().segments
    archive.load(old, "footer")
    assert archive.held(old, "footer") is None
    assert [*(tmp_path / "cache").glob("*/*")] == []
    (new,) = archive.look().segments
    assert load(archive, new).event(0) is None


def test_files_are_private_unless_they_are_shared(tmp_path):
    """Only its own user may read an archive's folder and cache, unless the folder is shared."""
    before = os.umask(0o022)
    try:
        Archive(tmp_path / "own").objects.create("segments/one", b"1")
        shared = tmp_path / "shared"
        Archive(shared, shared=shared.as_uri()).objects.create("segments/one", b"1")
        DiskCache(tmp_path / "cache", 1000).keep("one", b"1")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    for own in ("own", "own/segments", "cache"):
        assert modes[own] == 0o700
    for own in ("own/segments/one", "cache/one"):
        assert modes[own] == 0o600
    assert modes["shared/segments/one"] == 0o644

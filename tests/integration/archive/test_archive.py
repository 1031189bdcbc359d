"""An archive is whole at every moment: whichever process dies, sleeps or seals beside another."""

import math
import os
import resource
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from harness.archives import Died, bare, dying, made, positions_in, store_for
from obstore.store import S3Store

from zeroeventhub.archive import Archive
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import ConfigurationError, Unavailable

NOW = timedelta()
HOUR = timedelta(hours=1)


@pytest.fixture(params=["folder", "s3"])
def store(request):
    """An empty store of each kind."""
    return store_for(request.param, request)


def age(folder, **ages):
    """Let the files of an archive in a folder be of so many seconds ago."""
    for file in folder.rglob("*"):
        for part, seconds in ages.items():
            if part in str(file.relative_to(folder)):
                os.utime(file, (file.stat().st_mtime - seconds,) * 2)


def names(archive):
    """The names of segments that have files."""
    return {name.partition(".")[0] for name, _ in archive.objects.ages("segments")}


def named(archive):
    """The names of segments that the newest manifest has."""
    return {segment.name for segment in archive.look().segments}


def test_segments_follow_each_other(store):
    """Other processes see added segments; a segment that comes too late leaves no file."""
    late = Archive(store)
    late.look()
    archive = Archive(store)
    assert archive.look().segments == ()
    assert archive.add(made(0, 10), "feed")
    assert not archive.add(made(5, 20), "feed")
    assert not archive.add(made(11, 20), "feed")
    assert archive.add(made(10, 30, partitions=3), "feed")
    assert not late.add(made(0, 7, partitions=2), "feed")
    other = Archive(store)
    assert other.sealed() == 30
    assert positions_in(other) == [*range(1, 31)]
    assert [segment.events for segment in other.manifest.segments] == [10, 20]
    assert late.manifest == archive.manifest == other.manifest
    assert names(other) == named(other)


def test_death_at_any_step_of_adding_leaves_a_whole_archive(tmp_path):
    """After any step of sealing at which a process dies, the next one completes the archive."""
    for step in range(6):
        store = tmp_path / str(step)
        Archive(store).add(made(0, 10), "feed")
        archive = dying(store, step)
        archive.look()
        with pytest.raises(Died):
            archive.add(made(10, 20, partitions=2), "feed")
        following = Archive(store)
        assert following.sealed() == (10 if step < 5 else 20)
        assert positions_in(following) == [*range(1, following.sealed() + 1)]
        assert following.add(made(10, 20), "feed") is (step < 5)
        assert positions_in(Archive(store)) == [*range(1, 21)]


def test_segment_that_does_not_fit_on_the_disk_leaves_no_file(tmp_path):
    """Where there is no room for a segment, each try leaves as much as there was."""
    archive, written = Archive(tmp_path), made(0, 10, partitions=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(written.content) - 1, before[1]))
    try:
        with pytest.raises(Unavailable):
            archive.add(written, "feed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(archive) == set()
    assert archive.add(written, "feed")


def test_lost_answer_is_no_reason_to_seal_twice(tmp_path):
    """A manifest counts as created if only the store's answer was lost."""

    class Forgetful(Objects):
        def create(self, path, content):
            super().create(path, content)
            return super().create(path, content)

    archive = Archive(Forgetful(tmp_path))
    archive.look()
    assert archive.add(made(0, 10), "feed")
    assert positions_in(Archive(tmp_path)) == [*range(1, 11)]


class Lagging(Objects):
    """Lose the first answer about each object, and list only the first object of a folder."""

    created = 0

    def create(self, path, content):
        self.created += 1
        assert self.created < 9
        super().create(path, content)
        return super().create(path, content)

    def names(self, folder, after=""):
        return super().names(folder, after)[:1]


def test_file_stays_that_a_manifest_names_which_the_store_does_not_list_yet(tmp_path):
    """If the answer is lost and the listing is old, the archive keeps the segment's file."""
    Archive(tmp_path).add(made(0, 10), "feed")
    archive = Archive(Lagging(tmp_path))
    archive.look()
    with pytest.raises(Unavailable, match="lists no manifest"):
        archive.add(made(10, 20), "feed")
    assert positions_in(Archive(tmp_path)) == [*range(1, 21)]


def test_restore_ends_where_the_store_does_not_list_what_it_has(tmp_path):
    """A restore whose answer was lost does not write its manifest again and again."""
    Archive(tmp_path).add(made(0, 10), "feed")
    with pytest.raises(Unavailable, match="lists no manifest"):
        Archive(Lagging(tmp_path)).continue_after(5)
    assert Archive(tmp_path).continue_after(5) == 20


def test_process_never_goes_back_to_an_older_manifest(tmp_path):
    """A process that hears late that it has added a segment keeps what it has read meanwhile."""

    class Late(Objects):
        meanwhile = None

        def names(self, folder, after=""):
            found = super().names(folder, after)
            act, self.meanwhile = self.meanwhile, None
            if act is not None:
                act()
            return found

    archive, other = Archive(Late(tmp_path)), Archive(tmp_path)

    def advance():
        assert other.sealed() == 10
        assert other.add(made(10, 20), "feed")
        assert archive.sealed() == 20

    archive.objects.meanwhile = advance
    assert archive.add(made(0, 10), "feed")
    assert archive.manifest.sealed == 20


def test_what_dead_sealers_left_is_tidied_away(tmp_path):
    """`tidy` deletes the files that killed processes have left, also those of a killed `tidy`."""
    for step in range(0, 12, 2):
        store = tmp_path / str(step)
        for dead in (dying(store, 3).add, Archive(store).add):
            with suppress(Died):
                dead(made(0, 10), "feed")
        with suppress(Died):
            dying(store, step, grace=NOW).tidy()
        again = Archive(store, grace=NOW)
        again.tidy()
        assert names(again) == named(again)
        assert positions_in(again) == [*range(1, 11)]


def test_files_of_sealers_that_may_live_stay_for_the_grace(tmp_path):
    """A file that no manifest names, or a half-written one, goes after the grace time."""
    dead = dying(tmp_path, 1)
    with pytest.raises(Died):
        dead.add(made(0, 10), "feed")
    Archive(tmp_path).add(made(0, 10), "feed")
    drafts = [tmp_path / name for name in ("segments/draft.parquet#17", "manifest/draft.json#17")]
    for draft in drafts:
        draft.write_bytes(b"what is erased by now")
    archive = Archive(tmp_path, grace=HOUR)
    age(tmp_path, segments=3_500, manifest=3_500)
    assert archive.tidy() == []
    assert len(names(archive)) == 2
    assert [draft.exists() for draft in drafts] == [True, True]
    age(tmp_path, segments=200, manifest=200)
    assert len(archive.tidy()) == 1
    assert names(archive) == named(archive)
    assert [draft.exists() for draft in drafts] == [False, False]
    assert positions_in(Archive(tmp_path)) == [*range(1, 11)]


def test_segments_whose_manifests_are_missing_stay(tmp_path):
    """Where the manifests are lost, or not copied yet, `tidy` leaves the segments alone."""
    archive, folder = Archive(tmp_path / "archive"), tmp_path / "archive" / "manifest"
    archive.add(made(0, 10), "feed")
    folder.rename(tmp_path / "elsewhere")
    assert Archive(tmp_path / "archive", grace=NOW).tidy() == []
    assert not folder.exists()
    (tmp_path / "elsewhere").rename(folder)
    assert positions_in(Archive(tmp_path / "archive")) == [*range(1, 11)]


def test_segment_that_was_replaced_stays_for_those_who_read_it(tmp_path):
    """A replaced segment stays for the grace time, however old its file is."""
    archive = Archive(tmp_path, grace=HOUR, erasable=True)
    archive.add(made(0, 10, key=["ada", "bob"] * 5), "feed")
    (before,) = archive.look().segments
    age(tmp_path, segments=100_000)
    assert archive.erase([], ["ada"], bare) == 5
    assert archive.tidy() == []
    assert len(archive.content(before)) == before.size
    assert [one.name for one in archive.manifest.removed] == [before.name]
    soon = Archive(tmp_path, grace=NOW)
    assert soon.tidy() == [f"{before.name}.parquet"]
    assert soon.manifest.removed == ()
    assert len(positions_in(soon)) == 10


def test_small_segments_are_merged(store):
    """However often it is sealed, an archive has few segments, and all events in order."""
    archive = Archive(store, grace=NOW)
    for end in range(1, 42):
        archive.add(made(end - 1, end, partitions=3), "feed")
        archive.merge(16, 1_000)
        sizes = [segment.places for segment in archive.look().segments]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) == end
    assert sizes == [16, 16, 8, 1]
    assert positions_in(archive) == [*range(1, 42)]
    archive.tidy()
    assert names(archive) == named(archive)
    archive.merge(100, 10)
    assert len(archive.manifest.segments) == 4


def test_merged_segments_stay_for_those_who_read_them(tmp_path):
    """Files that were merged stay for the grace time, or as long as their URLs are valid."""
    archive = Archive(tmp_path, grace=HOUR, shared_for=HOUR / 2)
    for end in (10, 20):
        archive.add(made(end - 10, end), "feed")
    archive.merge(20, 10_000)
    assert (archive.manifest.removed, archive.tidy(), len(names(archive))) == ((), [], 3)
    for end in (30, 40):
        young = made(end - 10, end)
        segment = msgspec.structs.replace(young.segment, written=datetime.now(UTC) - HOUR)
        archive.add(replace(young, segment=segment), "feed")
    archive.merge(20, 10_000)
    assert [one.places for one in archive.manifest.segments] == [20, 20]
    assert len(archive.manifest.removed) == 2
    age(tmp_path, segments=10_000)
    assert len(archive.tidy()) == 2


@pytest.mark.parametrize("step", range(3))
def test_eraser_finds_events_that_are_merged_meanwhile(tmp_path, step):
    """An event is erased even if its segment becomes a part of another one just then."""
    archive, other = (Archive(tmp_path, erasable=True) for _ in range(2))
    for end in (4, 8, 12):
        archive.add(made(end - 4, end, key=["ada", "bob", "eve", "ian"]), "feed")
    read, steps = archive.content, iter(range(100))

    def content(segment):
        if next(steps) == step:
            other.look()
            other.merge(100, 1_000)
        return read(segment)

    archive.content = content
    archive.erase([], ["ada"], bare)
    assert sum(segment.events for segment in Archive(tmp_path).look().segments) == 9


def test_sealer_that_sleeps_with_a_file_that_was_tidied_away_comes_too_late(tmp_path):
    """No manifest names a segment whose file was deleted as abandoned."""

    class Sleeper(Objects):
        def create(self, path, content):
            found = super().create(path, content)
            if path.startswith("segments"):
                Archive(tmp_path, grace=NOW).tidy()
            return found

    Archive(tmp_path).add(made(0, 5), "feed")
    sleeper = Archive(Sleeper(tmp_path))
    sleeper.look()
    for _ in range(2):
        assert not sleeper.add(made(5, 10), "feed")
        assert Archive(tmp_path).sealed() == 5
    awake = Archive(tmp_path)
    awake.look()
    assert awake.add(made(5, 10), "feed")
    assert positions_in(Archive(tmp_path)) == [*range(1, 11)]


@pytest.mark.parametrize("erasing", [False, True], ids=["adding", "erasing"])
def test_segment_that_is_tidied_away_while_its_process_looks_is_named_by_no_manifest(
    tmp_path, erasing
):
    """A tidier whose clock is ahead deletes no file of a segment that an archive then lists."""

    class Tidied(Objects):
        def create(self, path, content):
            found = super().create(path, content)
            if path.startswith("segments") and next(tidied, False):
                Archive(tmp_path, grace=NOW).tidy()
                archive.look()  # as a reader in another thread does
            return found

    Archive(tmp_path).add(made(0, 1), "feed")
    tidied = iter([False, False, False, True] if erasing else [True])
    archive = Archive(Tidied(tmp_path), erasable=True)
    archive.look()
    columns = {"key": ["ada", "bob"] * 5}
    assert archive.add(made(1, 11, partitions=3, **columns), "feed") is erasing
    if erasing:
        assert archive.erase([], ["ada"], bare) == 5
    assert next(tidied, None) is None
    assert named(Archive(tmp_path)) <= names(archive)
    assert positions_in(Archive(tmp_path)) == [*range(1, 12 if erasing else 2)]


def test_old_manifests_go_and_their_numbers_are_given_to_none(tmp_path):
    """Old manifests are deleted after the grace time, and their numbers are not used again."""
    sleeper, archive = Archive(tmp_path), Archive(tmp_path, grace=NOW)
    archive.add(made(0, 2), "feed")
    sleeper.look()
    for after in range(2, 40, 2):
        archive.add(made(after, after + 2), "feed")
    Archive(tmp_path, grace=HOUR).tidy()
    assert len(archive.objects.names("manifest")) == 20
    archive.tidy()
    assert len(archive.objects.names("manifest")) == 11
    assert not sleeper.add(made(2, 30), "feed")
    assert sleeper.manifest == Archive(tmp_path).look()
    assert positions_in(Archive(tmp_path)) == [*range(1, 41)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"format": 2}', "upgrade"),
        (b"nonsense", "cannot be read"),
        (b'{"segments": [{"name": 1}]}', "cannot be read"),
    ],
)
def test_manifest_of_another_version_is_refused(tmp_path, content, complaint):
    """A manifest of another format is refused."""
    archive = Archive(tmp_path)
    archive.objects.create("manifest/000000000001.json", b"{}")
    assert archive.look().segments == ()
    archive.objects.create("manifest/000000000002.json", content)
    with pytest.raises(ConfigurationError, match=complaint):
        archive.look()


def test_reader_goes_on_with_what_it_knows_while_the_store_is_down(tmp_path, caplog, monkeypatch):
    """While the store is down, a reader uses the manifest that it has, and logs a warning."""

    def down(*_):
        raise Unavailable("The archive's store did not answer.")

    Archive(tmp_path).add(made(0, 10), "feed")
    archive, other = Archive(tmp_path), Archive(tmp_path)
    assert archive.is_stale
    known = archive.look()
    assert not archive.is_stale
    monkeypatch.setattr(Objects, "names", down)
    assert archive.refresh() == known
    assert "with a manifest that may be out of date" in caplog.text
    for use in (archive.look, other.refresh):
        with pytest.raises(Unavailable):
            use()
    for seconds in (0.9, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="look_seconds"):
            Archive(tmp_path, look_seconds=seconds)


def test_segment_that_was_changed_by_another_program_is_refused(tmp_path):
    """No segment is made of a changed one, and one that is gone is looked for in a new manifest."""
    archive = Archive(tmp_path, erasable=True)
    archive.add(made(0, 1_000, key=["ada", "bob"] * 500), "feed")
    (segment,) = archive.look().segments
    (path,) = (tmp_path / "segments").glob("*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    with pytest.raises(Unavailable, match="is damaged"):
        archive.erase([], ["ada"], bare)
    path.unlink()
    with pytest.raises(Unavailable, match="is missing"):
        archive.load(segment, 0)
    assert archive.is_stale


STORE = S3Store("bucket", region="us-east-1", access_key_id="any", secret_access_key="any")


def test_file_is_named_below_what_stands_before_it(tmp_path):
    """The URL of a file begins with the configured prefix; without one there is no URL."""
    segment = made(0, 10).segment
    for prefix in ("https://cdn.example/orders", "https://cdn.example/orders/"):
        archive = Archive(tmp_path, shared=prefix)
        assert archive.is_shared
        url = f"https://cdn.example/orders/segments/{segment.name}.parquet"
        assert archive.url(segment) == url
    assert not Archive(tmp_path).is_shared
    with pytest.raises(ConfigurationError, match="not shared"):
        Archive(tmp_path).url(segment)
    for shared in ("signed", "ftp://cdn.example", "orders", ""):
        with pytest.raises(ConfigurationError):
            Archive(tmp_path, shared=shared)


def test_signed_url_is_good_no_longer_than_its_file_stays():
    """A signed URL is valid for `shared_for`, or for the grace time if that is shorter."""
    for hours, seconds in ((1, 3_600), (72, 7_200)):
        archive = Archive(
            STORE, shared="signed", shared_for=timedelta(hours=hours), grace=timedelta(hours=2)
        )
        asked = parse_qs(urlsplit(archive.url(made(0, 10).segment)).query)
        assert asked["X-Amz-Expires"] == [str(seconds)]

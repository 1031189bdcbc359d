"""An archive is whole at every moment: whoever dies, sleeps or seals beside another."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from io import BytesIO

import obstore
import pytest
from harness.archives import KINDS, Died, dying, made, positions_in, store_for
from obstore.store import S3Store
from pyarrow import parquet

from zeroeventhub.archive import Archive
from zeroeventhub.archive.cache import DiskCache
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import ConfigurationError, Unavailable

NOW = timedelta()


@pytest.fixture(params=KINDS)
def store(request):
    """An empty store, of each kind in turn."""
    return store_for(request.param, request)


def test_segments_follow_each_other(store):
    """What was added is seen by whoever opens the archive; only what comes next can be added."""
    archive = Archive(store)
    assert archive.look().segments == ()
    assert archive.add(made(0, 10), "feed")
    assert not archive.add(made(5, 20), "feed")
    assert archive.add(made(10, 30, partitions=3), "feed")
    other = Archive(store)
    assert other.sealed() == 30
    assert positions_in(other) == [*range(1, 31)]
    assert [segment.events for segment in other.manifest.segments] == [10, 20]
    assert archive.manifest == other.manifest


def test_nobody_adds_to_what_has_changed_meanwhile(store):
    """Of two who add the same positions one is told that it came too late, and leaves nothing."""
    first, second = Archive(store), Archive(store)
    first.look()
    second.look()
    assert first.add(made(0, 10), "feed")
    late = made(0, 7)
    assert not second.add(late, "feed")
    assert second.manifest == first.manifest
    files = [name for name, _ in second.objects.ages("segments")]
    assert [name.partition(".")[0] for name in files] == [first.manifest.segments[0].name]


def test_sealers_side_by_side_lose_and_repeat_nothing(store):
    """Four sealers at once add every position once."""

    def seal():
        archive = Archive(store)
        while (after := archive.sealed()) < 24:
            archive.add(made(after, after + 2), "feed")

    with ThreadPoolExecutor(4) as sealers:
        for sealer in [sealers.submit(seal) for _ in range(4)]:
            sealer.result()
    assert positions_in(Archive(store)) == [*range(1, 25)]


@pytest.mark.parametrize("step", range(8))
def test_death_at_any_step_of_adding_leaves_a_whole_archive(store, step):
    """Whenever a sealer dies, the archive is as before or as after, and the next one goes on."""
    Archive(store).add(made(0, 10), "feed")
    archive = dying(store, step)
    archive.look()
    try:
        archive.add(made(10, 20, partitions=2), "feed")
    except Died:
        died = True
    else:
        died = False
    assert died is (step < 6)
    next_one = Archive(store)
    assert next_one.sealed() in ({10} if step < 5 else {20})
    assert positions_in(next_one) == [*range(1, next_one.sealed() + 1)]
    if next_one.sealed() == 10:
        assert next_one.add(made(10, 20), "feed")
    assert positions_in(Archive(store)) == [*range(1, 21)]


def test_lost_answer_is_no_reason_to_seal_twice(store):
    """A manifest whose creation was not answered counts, and is not taken for another's."""

    class Forgetful(Objects):
        def create(self, path, content):
            super().create(path, content)
            return super().create(path, content)

    archive = Archive(Forgetful(store))
    archive.look()
    assert archive.add(made(0, 10), "feed")
    assert positions_in(Archive(store)) == [*range(1, 11)]


@pytest.mark.parametrize("step", range(12))
def test_what_dead_sealers_left_is_tidied_away(store, step):
    """Files that no manifest names go after the grace time, wherever who removes them dies."""
    dead = dying(store, 3)
    with pytest.raises(Died):
        dead.add(made(0, 10, partitions=2), "feed")
    Archive(store).add(made(0, 10), "feed")
    assert Archive(store).tidy() == []
    archive = dying(store, step, grace=NOW)
    with suppress(Died):
        archive.tidy()
    again = Archive(store, grace=NOW)
    again.tidy()
    names = {name.partition(".")[0] for name, _ in again.objects.ages("segments")}
    assert names == {segment.name for segment in again.manifest.segments}
    assert positions_in(Archive(store)) == [*range(1, 11)]


def test_who_sleeps_with_a_file_that_was_tidied_away_comes_too_late(store):
    """No manifest ever names a segment that somebody took for left behind."""

    class Sleeper(Objects):
        def create(self, path, content):
            found = super().create(path, content)
            if path.startswith("segments"):
                Archive(store, grace=NOW).tidy()
            return found

    sleeper = Archive(Sleeper(store))
    sleeper.look()
    assert not sleeper.add(made(0, 10), "feed")
    assert sleeper.sealed() == 0
    assert sleeper.add(made(0, 10), "feed") is False
    assert Archive(store).sealed() == 0
    awake = Archive(store)
    awake.look()
    assert awake.add(made(0, 10), "feed")
    assert positions_in(Archive(store)) == [*range(1, 11)]


def test_reader_of_the_same_archive_brings_nothing_back(store):
    """What others have erased is not forgotten if a reader finds it while a segment is added."""
    first = made(0, 10, key=["ada"] * 10)
    assert Archive(store).add(first, "feed")

    class Interrupted(Objects):
        def create(self, path, content):
            if path.endswith(".parquet"):
                Archive(store, erasable=True).erase([], ["ada"], lambda position: f"1-{position}")
            return super().create(path, content)

    archive = Archive(Interrupted(store))
    known = archive.look()
    advance = archive._advance  # noqa: SLF001 - a reader comes between two of its steps

    def interrupted(*arguments, **changes):
        archive.look()
        return advance(*arguments, **changes)

    archive._advance = interrupted  # noqa: SLF001
    assert not archive.add(made(10, 20), "feed")
    assert archive.manifest.generation > known.generation
    assert first.segment.name not in {one.name for one in archive.manifest.segments}


def test_drafts_of_dead_writers_are_tidied_away(tmp_path):
    """What somebody has begun to write, and never finished, goes after the grace time."""
    archive = Archive(tmp_path, grace=NOW)
    archive.add(made(0, 10), "feed")
    draft = tmp_path / "segments" / "somebody.parquet#17"
    draft.write_bytes(b"what is erased by now")
    Archive(tmp_path).tidy()
    assert draft.exists()
    archive.tidy()
    assert not draft.exists()
    assert positions_in(Archive(tmp_path)) == [*range(1, 11)]


def test_damaged_segment_is_not_written_again(tmp_path):
    """To erase from a file that is not what was written would make it one that is believed."""
    archive = Archive(tmp_path, erasable=True)
    archive.add(made(0, 10, key=["ada", "bob"] * 5), "feed")
    (file,) = (tmp_path / "segments").glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    with pytest.raises(Unavailable, match="not what was written"):
        archive.erase([], ["ada"], lambda position: f"1-{position}")


def test_old_manifests_go_and_the_newest_stays(store):
    """A manifest is complete in itself, so that those of long ago are not needed."""
    archive = Archive(store, grace=NOW)
    for after in range(0, 60, 2):
        archive.add(made(after, after + 2), "feed")
    archive.tidy()
    assert len(archive.objects.names("manifest")) == 11
    assert positions_in(Archive(store)) == [*range(1, 61)]


def test_number_of_a_manifest_that_was_tidied_away_is_given_to_nobody(store):
    """Who slept until the manifest that it would make was made and removed comes too late."""
    sleeper, awake = Archive(store), Archive(store, grace=NOW)
    awake.add(made(0, 10), "feed")
    sleeper.look()
    assert awake.add(made(10, 12), "feed")
    for after in range(12, 60, 2):
        assert awake.add(made(after, after + 2), "feed")
    awake.tidy()
    assert "000000000002.json" not in awake.objects.names("manifest")
    assert not sleeper.add(made(10, 30), "feed")
    assert sleeper.manifest == Archive(store).look()
    assert positions_in(Archive(store)) == [*range(1, 61)]


def test_server_that_knows_of_no_offsets_is_understood(store, monkeypatch):
    """A server may list everything, whatever it was asked to begin behind."""
    listed = obstore.list

    def everything(store, prefix, *, offset, chunk_size):
        return listed(store, prefix, chunk_size=chunk_size)

    monkeypatch.setattr(obstore, "list", everything)
    archive = Archive(store)
    assert archive.add(made(0, 10), "feed")
    assert archive.add(made(10, 20), "feed")
    assert Archive(store).sealed() == 20
    assert archive.objects.names("manifest", "000000000001.json") == ["000000000002.json"]


def test_archive_of_another_feed_is_refused(store):
    """An archive knows whose events it has."""
    archive = Archive(store)
    archive.expect("any")
    archive.add(made(0, 10), "feed")
    Archive(store).expect("other")
    archive.expect("feed")
    with pytest.raises(ConfigurationError, match="belongs to another feed"):
        archive.expect("other")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (json.dumps({"format": 2}), "upgrade"),
        ("nonsense", "cannot be read"),
        ("{}", None),
        ('{"segments": [{"name": 1}]}', "cannot be read"),
    ],
)
def test_manifest_of_another_version_is_refused(tmp_path, content, complaint):
    """What this version cannot read it does not guess at."""
    archive = Archive(tmp_path)
    archive.objects.create("manifest/000000000007.json", content.encode())
    if complaint is None:
        assert archive.look().segments == ()
        return
    with pytest.raises(ConfigurationError, match=complaint):
        archive.look()


def test_half_written_files_are_nothing(tmp_path):
    """What a machine was writing when its power failed is not taken for an object."""
    archive = Archive(tmp_path)
    archive.add(made(0, 10), "feed")
    (tmp_path / "manifest" / "000000000002.json#123").write_bytes(b'{"generation": 2, ')
    assert Archive(tmp_path).sealed() == 10
    assert Archive(tmp_path).add(made(0, 20), "feed") is False


def test_segment_is_parquet_that_others_read(store):
    """Each row group has the events of one partition, in order, and every reader can read them."""
    archive = Archive(store)
    archive.add(made(0, 30, partitions=3, type=["placed"] * 30), "feed")
    (segment,) = archive.look().segments
    file = parquet.ParquetFile(BytesIO(archive.content(segment)))
    table = file.read()
    assert sorted(table["position"].to_pylist()) == [*range(1, 31)]
    assert file.num_row_groups == 3
    for number in range(3):
        group = file.read_row_group(number).to_pylist()
        assert [row["partition"] for row in group] == [number] * 10
        assert [row["data"] for row in group] == [f'{{"n":{row["position"]}}}' for row in group]
        assert {row["type"] for row in group} == {"placed"}


def test_store_that_does_not_answer_is_unavailable(tmp_path):
    """A store that is gone can be asked again; one that lets nobody in cannot."""
    archive = Archive(store_of_nobody())
    with pytest.raises(Unavailable, match="did not answer"):
        archive.look()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Archive("nonsense://bucket")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Archive(tmp_path / "file")


def store_of_nobody():
    """Return a store whose server does not listen."""
    return S3Store(
        "bucket",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.fixture
def cached(tmp_path):
    """An archive of ten thousand events that keeps what it fetched, and its segment."""
    archive = Archive(tmp_path / "archive", cache=tmp_path / "cache")
    archive.add(made(0, 10_000), "feed")
    (segment,) = archive.look().segments
    return archive, segment, tmp_path / "cache"


def reopened(archive, cache, **options):
    """Return the archive as another process has it."""
    found = Archive(archive.objects.store, cache=cache, **options)
    found.look()
    return found


def test_what_was_fetched_is_found_by_other_processes(cached):
    """The cache outlives its process, and the store is not asked again."""
    archive, segment, cache = cached
    before = archive.load_group(segment, archive.load_footer(segment), 0)
    other = reopened(archive, cache)
    asked = []
    other.objects.read = lambda *arguments: asked.append(arguments)
    after = other.load_group(segment, other.load_footer(segment), 0)
    assert asked == []
    assert after.events(range(3)) == before.events(range(3))


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "gone", "folder"])
def test_broken_cache_is_no_error(cached, harm):
    """A file of the cache that is not as it was written is fetched again."""
    archive, segment, cache = cached
    archive.load_group(segment, archive.load_footer(segment), 0)
    for file in cache.glob("*/*"):
        content = file.read_bytes()
        match harm:
            case "cut":
                file.write_bytes(content[:-1])
            case "changed":
                file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
            case "empty":
                file.write_bytes(b"")
            case "gone":
                file.unlink()
            case "folder":
                file.unlink()
                file.mkdir()
    other = reopened(archive, cache)
    group = other.load_group(segment, other.load_footer(segment), 0)
    assert [*group.positions] == [*range(1, 10_001)]


def test_cache_keeps_what_was_used_last_within_its_bound(tmp_path):
    """What was not used for the longest goes first, and the bound holds."""
    archive = Archive(tmp_path / "archive", cache=tmp_path / "cache", cache_bytes=60_000)
    for after in range(0, 100_000, 10_000):
        archive.add(made(after, after + 10_000), "feed")
    segments = archive.look().segments
    for segment in segments:
        archive.load_group(segment, archive.load_footer(segment), 0)
        (folder,) = (tmp_path / "cache").iterdir()
        assert DiskCache(folder, 60_000).get(f"{segments[0].name}.0") is not None
    files = [*folder.iterdir()]
    assert sum(file.stat().st_size for file in files) < 60_000 * 17 / 16
    assert f"{segments[1].name}.0" not in {file.name for file in files}


def test_segment_that_was_changed_by_somebody_else_is_refused(cached):
    """What comes from the store is compared with what was written there."""
    archive, segment, _ = cached
    footer = archive.load_footer(segment)
    path = archive.objects.store.prefix / "segments" / f"{segment.name}.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    with pytest.raises(Unavailable, match="is not what was written"):
        archive.load_group(segment, footer, 0)
    path.unlink()
    with pytest.raises(Unavailable, match="is not there"):
        archive.load_group(segment, footer, 0)

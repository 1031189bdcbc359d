"""Objects are created once, whole or not at all, in folders, in memory and on servers."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from harness.archives import s3_store, store_for
from harness.killed import creating, until_killed
from harness.published import install
from harness.readers import mounted, page_url
from harness.shop import metadata, orders
from harness.statements import execute
from obstore.store import S3Store

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.retention import Retention


@pytest.fixture(params=["folder", "memory", "s3"])
def objects(request):
    """The objects of an archive in an empty store, of each kind in turn."""
    return Archive(store_for(request.param, request)).objects


def test_object_is_created_once(objects):
    """An object is not overwritten; it is read whole or in part, listed and deleted."""
    assert objects.create("segments/one", b"first")
    assert not objects.create("segments/one", b"second")
    assert objects.create("segments/two", b"2")
    assert objects.create("manifest/1", b"3")
    assert objects.read("segments/one") == b"first"
    assert objects.read("segments/one", 1, 3) == b"irs"
    assert objects.names("segments") == ["one", "two"]
    assert objects.names("segments", "one") == ["two"]
    assert objects.names("nothing") == []
    (age,) = [created for name, created in objects.ages("manifest")]
    assert abs(age - datetime.now(UTC)) < timedelta(minutes=1)
    objects.delete(["segments/one", "segments/none"])
    assert objects.names("segments") == ["two"]
    with pytest.raises(FileNotFoundError):
        objects.read("segments/one")


@pytest.mark.parametrize("place", [Path, str, Path.as_uri])
def test_folder_begins_with_its_first_object(tmp_path, place):
    """An archive that is only looked at, or tidied, creates no folder; another process sees one."""
    store = place(tmp_path / "our shop" / "archive")
    archive, other = Archive(store), Archive(store)
    assert archive.sealed() == other.sealed() == 0
    assert archive.tidy() == []
    with pytest.raises(FileNotFoundError):
        archive.objects.read("segments/one")
    assert [*tmp_path.iterdir()] == []
    assert archive.objects.create("segments/one", b"1")
    assert other.objects.names("segments") == ["one"]


def test_draft_that_is_swept_is_an_error(tmp_path, monkeypatch):
    """A process whose draft is deleted by a tidier with a clock that is ahead says so."""
    objects, fsync = Archive(tmp_path).objects, os.fsync

    def swept(file):
        fsync(file)
        Archive(tmp_path).objects.sweep("segments", datetime.now(UTC) + timedelta(days=2))

    monkeypatch.setattr(os, "fsync", swept)
    with pytest.raises(Unavailable, match="tidies it is ahead"):
        objects.create("segments/one", b"1")
    monkeypatch.undo()
    assert objects.create("segments/one", b"1")


def test_missing_bucket_is_an_error(s3_url):
    """A bucket that does not exist refuses new objects by an error of ours."""
    config = s3_store(s3_url).config | {"bucket": "missing"}
    store = S3Store(config=config, client_options={"allow_http": True})
    with pytest.raises(Unavailable, match="bucket is missing"):
        Archive(store).objects.create("segments/one", b"1")


def silent_store(key, endpoint):
    """Return a store on a server that does not answer."""
    keys = {"region": "us-east-1", "access_key_id": key, "secret_access_key": key}
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    return S3Store("bucket-7f", prefix="folder-7f", endpoint=endpoint, **keys, **options)


def test_store_that_does_not_answer_is_unavailable(tmp_path):
    """A store that does not answer is Unavailable; one that cannot be opened is refused."""
    with pytest.raises(Unavailable, match="does not answer"):
        Archive(silent_store("any", "http://127.0.0.1:9")).look()
    (tmp_path / "file").write_text("")
    for place in ("nonsense://bucket", tmp_path / "file"):
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            Archive(place)


@pytest.mark.parametrize("place", ["", None])
def test_place_that_was_left_empty_is_refused(place):
    """An empty variable is no archive, and does not stand for the working directory."""
    with pytest.raises(ConfigurationError, match="An archive has a folder"):
        Archive(place)


def test_store_that_lets_no_process_in_is_refused(tmp_path, monkeypatch):
    """A folder without the right to write is a ConfigurationError."""
    objects = Archive(tmp_path).objects
    monkeypatch.setattr("os.link", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigurationError, match="denies this process access"):
        objects.create("segments/one", b"")
    assert objects.names("segments") == []


@pytest.mark.slow
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.test_all)])
def test_killed_at_points_of_creating_a_file(tmp_path, stride):
    """A file is whole as soon as it is seen, wherever its writer is killed."""
    at, found, killed = 1, [], True
    while killed:
        folder = tmp_path / str(at)
        killed = until_killed(creating, folder, "segments/one", b"whole", at)
        objects = Archive(folder).objects
        found.append([objects.read(f"segments/{name}") for name in objects.names("segments")])
        objects.create("segments/one", b"other")
        assert objects.names("segments") == ["one"]
        at += stride
    assert found.count([])
    assert found.count([b"whole"])
    assert len(found) == found.count([]) + found.count([b"whole"])


def test_readers_get_no_word_of_the_store(sqlite, caplog):
    """A 503 repeats nothing that the object store says; the log does, without credentials."""
    store = silent_store("kanarek", "http://kanarek:kanarek@127.0.0.1:9")
    feed = TableFeed(orders, data="data", retention=Retention(), archive=Archive(store))
    metadata.create_all(sqlite)
    install(feed, sqlite)
    execute(sqlite, "UPDATE zeroeventhub_retention SET trimmed = 5")
    with mounted(feed, sqlite) as url:
        for route in ("/events", "/lag", "/splits"):
            answer = httpx.get(page_url(url, count=2).replace("/events", route))
            assert answer.status_code == 503
            secrets = ("kanarek", "bucket-", "folder-", "127.0.0.1", "http:")
            assert not [one for one in secrets if one in answer.text]
    said = "".join(f"{vars(one)!r} {one.getMessage()}" for one in caplog.records)
    assert "bucket-7f" in said
    assert "kanarek" not in said


FORKING = """
import os, signal, sys
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError

archive = Archive(sys.argv[1])
archive.objects.create("segments/one", b"1")
archive.objects.read("segments/one")
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1])
signal.alarm(20)
try:
    archive.objects.read("segments/one")
except ConfigurationError as error:
    sys.exit("after the fork" not in str(error))
sys.exit("The child has read.")
"""


def test_archive_of_a_forked_process_is_refused(tmp_path):
    """A process forked from one that has used an archive is refused it, and does not hang."""
    subprocess.run([sys.executable, "-c", FORKING, str(tmp_path)], check=True, timeout=60)

"""A manifest is read as it was written, and names nothing outside the archive."""

import json
from unittest.mock import Mock
from zlib import crc32

import msgspec
import pytest
from harness.archives import made

from zeroeventhub.archive import Archive
from zeroeventhub.archive.manifest import Manifest, Removed, digest_of, is_whole
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import ConfigurationError, Unavailable

NAME = f"{0:019}-{10:019}-0123456789abcdef"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../../outside",
        f"../{NAME}",
        f"{NAME}/../../outside",
        f"{NAME}\0",
        f"{NAME}\n",
        f"\n{NAME}",
        f"{NAME}.parquet",
        f"s3://bucket/{NAME}",
        NAME.upper().replace("0", "\u0660"),
        NAME * 2,
    ],
)
@pytest.mark.parametrize("field", ["segments", "removed"])
def test_name_that_no_segment_has_is_refused(tmp_path, name, field):
    """A segment's name of another form, such as a path, is refused before it is used."""
    objects = Objects(tmp_path / "archive")
    objects.read = Mock(wraps=objects.read)
    archive = Archive(objects, cache=tmp_path / "cache")
    named = msgspec.structs.replace(made(0, 10).segment, name=name)
    if field == "removed":
        named = Removed(name, "2026-01-01T00:00:00Z")
    path = "manifest/000000000001.json"
    objects.create(path, Manifest(1, "feed", **{field: (named,)}).encode())
    for use in (archive.look, archive.refresh, archive.tidy):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            use()
    assert archive.manifest == Manifest()
    assert {asked.args[0] for asked in objects.read.call_args_list} == {path}
    assert not (tmp_path / "cache").exists()


def test_name_that_a_segment_has_is_not_refused(tmp_path):
    """The names of written segments have the accepted form."""
    segment = msgspec.structs.replace(made(0, 10).segment, name=NAME)
    objects = Objects(tmp_path)
    objects.create("manifest/000000000001.json", Manifest(1, "feed", (segment,)).encode())
    assert Archive(objects).look().segments == (segment,)


def test_reader_goes_on_by_the_manifest_before_a_damaged_one(tmp_path, caplog):
    """A reader that knows an older manifest reads on by that, and the log names the file."""
    archive = Archive(tmp_path)
    archive.add(made(0, 10), "feed")
    reader = Archive(tmp_path)
    known = reader.look()
    archive.add(made(10, 20), "feed")
    path = tmp_path / "manifest" / "000000000002.json"
    path.write_bytes(path.read_bytes().replace(b'"upto": 20', b'"upto": 30'))
    assert reader.refresh() == known
    assert "manifest/000000000002.json is damaged" in caplog.text
    for use in (reader.look, Archive(tmp_path).refresh, Archive(tmp_path).sealed):
        with pytest.raises(Unavailable):
            use()


def test_manifest_of_before_there_were_digests_is_read(tmp_path):
    """A manifest without its own digest is read, and the next one has a digest."""
    archive = Archive(tmp_path)
    archive.add(made(0, 10), "feed")
    (path,) = (tmp_path / "manifest").iterdir()
    document = json.loads(path.read_bytes())
    assert [*document][-1] == "blake2b"
    del document["blake2b"]
    path.write_text(json.dumps(document))
    old = Archive(tmp_path)
    assert old.look() == archive.manifest
    assert old.add(made(10, 20), "feed")
    assert b"blake2b" in (tmp_path / "manifest" / "000000000002.json").read_bytes()


def test_checksum_that_was_forged_is_not_enough():
    """Other bytes of the same checksum are refused by their digest, where there is one."""
    written, forged = b"plumless", b"buckeroo"
    assert crc32(forged) == crc32(written)
    assert is_whole(written, digest_of(written), crc32(written))
    assert not is_whole(forged, digest_of(written), crc32(written))
    assert is_whole(forged, "", crc32(written))

"""What is read of a segment is what was written, or an error."""

import msgspec
import pytest
from harness.archives import bare, made

from zeroeventhub.archive import Archive, segment_writer
from zeroeventhub.errors import ConfigurationError, Unavailable


def everything_in(folder):
    """All that an archive in a folder says: its segments, their events, and where they are."""
    archive, found = Archive(folder), []
    for segment in archive.look().segments:
        footer, places = archive.load(segment, "footer"), archive.load(segment, "places")
        found.append((segment, [places.below(at) for at in range(segment.upto + 1)]))
        for number, entry in enumerate(footer.entries):
            group = archive.load(segment, number)
            events = [group.event(index) for index in range(entry.places)]
            found.append((entry, group.positions.tolist(), events))
    return found


@pytest.mark.parametrize(
    ("stride", "bits"),
    [(67, 1), *(pytest.param(1, bits, marks=pytest.mark.test_all) for bits in (1, 128, 255))],
)
def test_byte_that_was_changed_is_noticed_or_of_no_effect(tmp_path, stride, bits):
    """A changed byte in any file is an error, or has no effect."""
    Archive(tmp_path).add(made(0, 12, partitions=2), "feed")
    before, noticed = everything_in(tmp_path), {}
    for path in [path for path in tmp_path.rglob("*.*") if path.is_file()]:
        content = path.read_bytes()
        noticed[path.suffix] = 0
        for at in range(0, len(content), stride):
            path.write_bytes(content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :])
            try:
                assert everything_in(tmp_path) == before, (path.name, at)
            except (Unavailable, ConfigurationError):
                noticed[path.suffix] += 1
        path.write_bytes(content)
        # All but the name of the manifest's digest, and the mark with which Parquet begins.
        assert noticed[path.suffix] >= (len(content) - len("blake2b")) // stride
    assert {*noticed} == {".json", ".parquet", ".places"}


def test_segment_of_before_there_were_digests_is_read(tmp_path, monkeypatch):
    """A segment without digests is read, and compared with its checksums."""

    def without(entries):
        values = [[getattr(one, name) for name in one.__struct_fields__] for one in entries]
        return msgspec.json.encode([one[:-1] for one in values])

    monkeypatch.setattr(segment_writer, "encode_index", without)
    monkeypatch.setattr(segment_writer, "digest_of", lambda _: "")
    archive = Archive(tmp_path, erasable=True)
    archive.add(made(0, 12, partitions=2, key=["ada", "bob"] * 6), "feed")
    (manifest,) = (tmp_path / "manifest").iterdir()
    assert b"_digest" not in manifest.read_bytes()
    found = everything_in(tmp_path)
    assert [positions for _, positions, *_ in found[1:]] == [[*range(2, 13, 2)], [*range(1, 13, 2)]]
    (path,) = (tmp_path / "segments").glob("*.parquet")
    content = path.read_bytes()
    for place in (500, len(content) - 20):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(Unavailable, match="is damaged"):
            everything_in(tmp_path)
    path.write_bytes(content)
    monkeypatch.undo()
    assert archive.erase([], ["ada"], bare) == 6
    (segment,) = Archive(tmp_path).look().segments
    assert all([segment.footer_digest, segment.places_digest])

"""Bodies in zstd, as they come: whole, cut, broken, and larger than anybody could hold."""

import struct
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub._http.content_coding import WINDOW, content_coding
from zeroeventhub.errors import ProtocolError

PACKER = zstandard.ZstdCompressor(write_checksum=True)
SKIPPED = struct.pack("<II", 0x184D2A50, 1_000) + bytes(1_000)


def unpacked(chunks):
    """What comes of chunks, in pieces, and whether it may be all."""
    coding = content_coding("zstd", zstd=True)
    return [piece for chunk in chunks for piece in coding.pieces(chunk)], coding.whole


@given(st.lists(st.binary(max_size=300), max_size=4), st.lists(st.integers(0, 900), max_size=6))
def test_frames_come_through_in_any_chunks(frames, cuts):
    """Frames are unpacked to what they held, however their bytes are cut up."""
    body = b"".join(map(PACKER.compress, frames))
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces, whole = unpacked(body[start:end] for start, end in pairwise(places))
    assert b"".join(pieces) == b"".join(frames)
    assert whole == bool(frames)


def test_cut_is_noticed():
    """Whatever is missing, up to the last byte of the checksum, is noticed."""
    body = PACKER.compress(bytes(range(40)) * 50)
    assert unpacked([body])[1]
    for end in range(len(body)):
        assert not unpacked([body[:end]])[1]


def test_bomb_comes_in_pieces():
    """The most that can be packed into some bytes is unpacked in pieces of a bounded size, before
    more is taken.
    """
    content = bytes(64 * 1024 * 1024)
    body = PACKER.compress(content)
    assert len(body) < 20_000
    coding, longest, total = content_coding("zstd", zstd=True), 0, 0
    for piece in coding.pieces(body):
        longest, total = max(longest, len(piece)), total + len(piece)
    assert total == len(content)
    assert longest <= 17 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b'{"cursor":"a"}\n',
        PACKER.compress(b"a")[:-1] + b"\0",
        PACKER.compress(b"a") + b"tail",
        SKIPPED * 100,
    ],
    ids=["no zstd", "checksum", "tail", "frames of nothing"],
)
def test_what_is_broken_is_refused(body):
    """What cannot be trusted to be what was sent is not taken."""
    with pytest.raises(ProtocolError, match="zstd"):
        unpacked([body])


def test_window_that_is_too_large_is_refused():
    """A frame for which more would have to be remembered than RFC 9659 allows is refused."""
    parameters = zstandard.ZstdCompressionParameters(window_log=24)
    assert WINDOW < 1 << 24
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = packer.compress(b"abc" * 100) + packer.flush()
    with pytest.raises(ProtocolError, match="zstd"):
        unpacked([body])


def test_it_has_to_be_asked_for():
    """Zstd that nobody asked for is a coding that nobody asked for."""
    coding = content_coding("zstd")
    with pytest.raises(ProtocolError, match="not asked for"):
        [*coding.pieces(PACKER.compress(b"a"))]

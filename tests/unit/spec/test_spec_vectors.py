"""The decoder against the vectors of the specification."""

from itertools import pairwise

import pytest
from harness.vectors import alternatives, content, vectors

from zeroeventhub import FeedInfo
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.ndjson import PageDecoder, decode_info

LONGEST_BYTE_BY_BYTE = 8192


def parameters(kind):
    """The vectors of a kind, each by its name."""
    return [
        pytest.param(
            vector,
            id=ascii(vector["name"]),
        )
        for vector in vectors(kind)["vectors"]
    ]


def ways(vector, body):
    """The ways in which a body may come in chunks: whole, as the vector says, byte by byte."""
    yield [body]
    if "cuts" in vector:
        yield [body[start:end] for start, end in pairwise([0, *vector["cuts"], len(body)])]
    if len(body) <= LONGEST_BYTE_BY_BYTE:
        yield [body[place : place + 1] for place in range(len(body))]


def decoded(chunks, partition):
    """What the decoder makes of chunks, in the words of the vectors."""
    decoder = PageDecoder(partition)
    try:
        for chunk in chunks:
            decoder.feed(chunk)
        page = decoder.page()
    except CutPage:
        return {"error": "cut"}
    except ProtocolError:
        return {"error": "protocol"}
    return {
        "events": [event.raw for event in page.events],
        "headers": [dict(event.headers) for event in page.events],
        "count": len(page.events),
        "cursor": page.cursor,
        "caughtUp": page.caught_up,
        "stopReached": page.stop_reached,
    }


def page_of(expected):
    """What a vector expects, with its texts put together and its defaults filled in."""
    if "error" in expected:
        return expected
    expected = {"caughtUp": False, "stopReached": False, **expected}
    if "events" in expected:
        expected["events"] = [content(event) for event in expected["events"]]
    return {**expected, "cursor": content(expected["cursor"]).decode()}


@pytest.mark.parametrize("vector", parameters("decode"))
def test_body_is_decoded_as_the_vector_says(vector):
    """A body gives the page or the error that the specification says, in whatever chunks."""
    expected = [page_of(one) for one in alternatives(vector)]
    for chunks in ways(vector, content(vector["body"])):
        got = decoded(chunks, vector["partition"])
        assert any(got == got | one for one in expected if ("error" in got) == ("error" in one))


@pytest.mark.parametrize("vector", parameters("discovery"))
def test_discovery_document_is_decoded_as_the_vector_says(vector):
    """A discovery document gives the description or the error that the specification says."""
    try:
        got = described(decode_info(content(vector["body"])))
    except ProtocolError:
        got = {"error": "protocol"}
    assert got == vector["expect"]


def described(info: FeedInfo):
    """What a feed says of itself, in the words of the vectors."""
    return {
        "token": info.token,
        "partitions": [
            {
                "id": partition.id,
                "closed": partition.closed,
                "startsAfterPartition": partition.starts_after,
                "cursorFromPartitions": list(partition.cursor_from),
            }
            for partition in info.partitions
        ],
        "exactlyOnce": info.exactly_once,
        "extensions": sorted(info.extensions),
    }


@pytest.mark.parametrize("kind", ["decode", "discovery", "requests"])
def test_vectors_are_named_once(kind):
    """A vector is known by its name."""
    names = [vector["name"] for vector in vectors(kind)["vectors"]]
    assert len(names) == len(set(names))

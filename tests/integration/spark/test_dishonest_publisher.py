"""What a publisher that means harm cannot do to Spark, from discovery to the rows of a query."""

import gzip
import json
import time

import pytest
from harness.web import serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MEBIBYTE = 1024 * 1024
HOSTILE = "\x1b]0;title\x07\u202e"
BOMB = gzip.compress(b"\n" * (8 * MEBIBYTE), 1) * 128
END = b'{"cursor":"9","caughtUp":true}\n'


def packed(request):
    """Send a gibibyte in a few mebibytes."""
    return Response(BOMB, headers={"Content-Encoding": "gzip"})


def long_line(request):
    """Send an event that is larger than a line may be."""
    return Response(b'{"data":"%b"}\n' % (b"x" * 12 * MEBIBYTE) + END)


def no_events(request):
    """Send millions of lines that are no events."""
    return Response(b"\n" * (8 * MEBIBYTE) + END)


def circle(request):
    """Lead from one cursor to another and back."""
    return Response(b'{"cursor":"%d"}\n' % (1 + (request.query_params["cursor"] == "1")))


def broken(request):
    """Send a line that is no JSON, and would move a terminal's cursor."""
    return Response(f"{HOSTILE}\n".encode() + END)


def refused(request):
    """Refuse with words that would move a terminal's cursor."""
    problem = {"type": "about:blank", "title": HOSTILE, "status": 400, "detail": HOSTILE}
    return Response(json.dumps(problem), 400, media_type="application/problem+json")


ONE = {"token": "1", "partitions": [{"id": "0"}]}
MANY = {"token": "1", "partitions": [{"id": str(number)} for number in range(40_000)]}
LARGE = {"token": "1", "partitions": "x" * (20 * MEBIBYTE)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("info", "page"),
    [
        *((ONE, page) for page in (packed, long_line, no_events, circle, broken, refused)),
        pytest.param(MANY, circle, id="many partitions"),
        pytest.param(LARGE, circle, id="large discovery"),
    ],
)
def test_feed_that_means_harm_ends_the_query(spark, info, page):
    """Whatever a publisher sends, the query fails in time with an error that can be printed."""
    discovery = Route("/feed", lambda request: JSONResponse(info))
    with serving(Starlette(routes=[discovery, Route("/feed/events", page)])) as url:
        began = time.monotonic()
        with pytest.raises(Exception, match=r"zeroeventhub\.errors\.") as failed:
            spark.read.format("zeroeventhub").option("attempts", 1).load(f"{url}/feed").count()
        assert time.monotonic() - began < 30
    assert HOSTILE[0] not in str(failed.value)

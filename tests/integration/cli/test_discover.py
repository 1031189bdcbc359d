"""`zeroeventhub discover`."""

import json
from contextlib import contextmanager

from harness.command_line import invoke
from harness.web import answering

EXTENSIONS = [
    *("caught-up", "cursor-of-count", "cursor-of-time", "event-types", "lag", "splits", "stop"),
    "wait",
]


@contextmanager
def discovery(extensions):
    """The URL of a feed that answers everything with a discovery document."""
    document = {"token": "t", "partitions": [{"id": "0"}], "extensions": extensions}
    body = json.dumps(document)
    with answering(lambda _: f"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}".encode()) as url:
        yield url


def test_discover_shows_partitions(feed):
    """Discover prints the partitions for people, and JSON for machines."""
    assert invoke("discover", feed).stdout == (
        "FeedAPI v2, token 2; each event once\n"
        f"extensions: {', '.join(EXTENSIONS)}\n"
        "partition 0\npartition 1\n"
    )
    document = json.loads(invoke("discover", feed, "--json").stdout)
    assert (document["token"], document["extensions"]) == ("2", EXTENSIONS)


def test_discover_shows_extensions_of_others():
    """Extensions that a publisher announces are shown without control characters."""
    with discovery([]) as url:
        assert "extensions" not in invoke("discover", url).stdout
    with discovery(["x-mine", "\x1b[2J\n"]) as url:
        shown = invoke("discover", url).stdout
    assert shown.splitlines()[1] == "extensions: '\\x1b[2J\\n', x-mine"

"""Both ways with the published Python peer: its client and our feed, our client and its feed."""

import json

import pytest
from harness.peer import peer_python, run_peer
from harness.readers import client_of, mounted
from harness.shop import fill, orders

from zeroeventhub import FIRST, TableFeed

__all__ = ["peer_python"]


def test_client_of_the_peer_drains_our_feed(peer_python, any_engine):
    """The peer's client reads every event of our feed once, with its headers."""
    fill(any_engine, 50, partitions=3)
    feed = TableFeed(
        orders, partition="part", partitions=3, data="data", headers={"customer": "customer"}
    )
    with mounted(feed, any_engine) as url:
        process = run_peer(peer_python, "client.py", url, 3)
        lines, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    received = [json.loads(line) for line in lines.splitlines()]
    assert sorted(received, key=lambda event: event[2]["n"]) == [
        [n % 3, {"customer": f"c{n % 7}"}, {"n": n}] for n in range(50)
    ]


@pytest.fixture
def peer_url(peer_python):
    """The URL of a feed that the peer publishes."""
    process = run_peer(peer_python, "server.py")
    port = process.stdout.readline().strip()
    yield f"http://127.0.0.1:{port}/feed/v1"
    process.terminate()
    process.communicate(timeout=200)


def test_our_client_drains_the_feed_of_the_peer(peer_url):
    """Our client finds that the feed speaks v1, and asks for headers by name."""
    with client_of(peer_url, partitions=2) as client:
        assert client.discover().token is None
        page = client.fetch(1, FIRST, limit=3, headers=["h"])
    assert [event.data["n"] for event in page.events] == [0, 1, 2]
    assert page.events[0].data["text"] == "line\u2028break"
    assert page.events[2].headers == {"h": "2"}
    assert page.cursor == "3"

"""Files of an archive, named to readers in bulk: with the pages behind them, they are the feed."""

import json
import logging
import re
from contextlib import contextmanager

import pytest
from harness.published import install
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.spark_reading import read
from sqlalchemy import delete, insert

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import BadCursor, ConfigurationError, Diverged
from zeroeventhub.protocol import SEGMENTS
from zeroeventhub.publisher.retention import Retention


@contextmanager
def served(feed, engine):
    """The feed over HTTP, and a client of it."""
    with mounted(feed, engine) as url, client_of(url) as client:
        yield url, client


def texts(url, partition, start, stop, origins):
    """The events of a range, as a task of Spark reads them."""
    options = {
        "segmentOrigins": origins,
        "startingOffsets": json.dumps({partition: start}),
        "endingOffsets": json.dumps({partition: stop}),
    }
    return [row["data"] for row in read(url, partitions=partition, **options)]


def pages(client, partition, start, stop=None):
    """The events of a range, by pages of seven, and the cursor behind each page."""
    found, cursors, cursor = [], [], start
    while True:
        page = client.fetch(partition, cursor, limit=7, stop=stop)
        found += [event.raw.decode() for event in page.events]
        cursor = page.cursor
        cursors.append(cursor)
        if page.caught_up or page.stop_reached:
            return found, cursors


def test_files_and_pages_are_the_feed(any_engine, sealed, origins, caplog):
    """Files and pages bring what pages alone do, between any cursors; no signature is logged."""
    caplog.set_level(logging.DEBUG)
    bound = sealed.bind(any_engine)
    bound.trim(bound.plan_trim(sealed=45))
    with served(sealed, any_engine) as (url, client):
        assert SEGMENTS in client.discover().extensions
        for partition in range(3):
            whole, cursors = pages(client, partition, FIRST)
            assert len(whole) == 30
            behind = client.segments(partition, cursors[-1])
            assert (behind.parts, behind.cursor) == ((), cursors[-1])
            for place_of_start, start in enumerate((FIRST, *cursors)):
                for stop in cursors[place_of_start:]:
                    wanted, _ = pages(client, partition, start, stop)
                    assert texts(url, partition, start, stop, origins) == wanted
    assert "segments" in caplog.text
    assert not re.search(r"Signature=[0-9a-f]{8}", caplog.text)


def test_cursors_of_another_history_find_no_files(any_engine, sealed):
    """No file is named where the table's history is not the archive's, or for a bad cursor."""
    with served(sealed, any_engine) as (_, client):
        cursor = client.segments(0, FIRST).parts[0].cursor
        with any_engine.begin() as connection:
            connection.execute(delete(orders).where(orders.c.id >= 15))
            rows = [{"id": number, "part": 0, "data": {"n": -number}} for number in range(15, 91)]
            connection.execute(insert(orders), rows)
        for start in (FIRST, cursor):
            with pytest.raises(Diverged):
                client.segments(0, start)
        for start in ("nonsense", "_last"):
            with pytest.raises(BadCursor):
                client.segments(0, start)


def test_files_are_shared_only_if_that_is_said(any_engine, tmp_path):
    """A reader is given no files of an archive that is not shared."""
    metadata.create_all(any_engine)
    feed = TableFeed(orders, data="data", retention=Retention(), archive=Archive(tmp_path))
    install(feed, any_engine)
    with served(feed, any_engine) as (_, client):
        assert SEGMENTS not in client.discover().extensions
        with pytest.raises(ConfigurationError, match="segments"):
            client.segments(0, FIRST)

"""JSON that was stored in many lines, in every form in which a feed is sent."""

import json

import httpx
import pytest
from harness.web import serving
from sqlalchemy import JSON, Column, Integer, MetaData, Table, text
from starlette.applications import Starlette

from zeroeventhub import Client, TableFeed, feed_routes

DATA = {"note": "line\r\nbreak", "n": 1}
STORED = json.dumps(DATA, indent=1).replace("\n", "\r\n")

documents = Table(
    "documents",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("data", JSON),
    sqlite_autoincrement=True,
)


@pytest.fixture(params=[True, False], ids=["cloudevents", "plain"])
def url(request, engine):
    """Serve a table whose JSON was written with the line ends of Windows."""
    documents.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO documents (data) VALUES (:data)"), {"data": STORED})
    feed = TableFeed(documents, data="data", cloudevents=request.param)
    routes = feed_routes(
        "/feed", feed, engine, http_feed=request.param, server_sent_events=True, arrow=True
    )
    with serving(Starlette(routes=routes)) as address:
        yield f"{address}/feed"


def test_line_ends_of_stored_json_stay_at_the_publisher(url):
    """Outside of strings a carriage return is white space, and readers end lines there."""
    asked = {
        "/events": {"cursor": "_first", "partition": "0", "token": "1"},
        "": {"n": 1, "cursor0": "_first"},
        "/http-feed": {},
    }
    for path, parameters in asked.items():
        answer = httpx.get(url + path, params=parameters)
        if answer.status_code != 404:
            assert answer.status_code == 200
            assert b"\r" not in answer.content
    with httpx.stream("GET", f"{url}/server-sent-events") as stream:
        block = next(stream.iter_raw())
        assert b"\r" not in block
    with httpx.Client() as http:
        client = Client(url, http)
        (event,) = client.fetch(0, "_first").events
        assert event.data.get("data", event.data) == DATA
        (value,) = client.fetch_arrow(0, "_first").batches[0].column("data").to_pylist()
        assert b"\r" not in value.encode()

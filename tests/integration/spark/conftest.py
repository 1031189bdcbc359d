"""Fixtures of Spark, and of the shops that it reads."""

import pytest
from harness.archives import s3_store
from harness.shop import metadata, orders, place
from harness.spark import spark_session
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.archive import Archive


@pytest.fixture(scope="session")
def spark():
    """A session of Spark on two cores."""
    with spark_session() as session:
        yield session


@pytest.fixture
def shop(any_engine):
    """The database of a shop with two hundred orders in two partitions."""
    metadata.create_all(any_engine)
    with any_engine.begin() as connection:
        place(connection, 200, partitions=2)
    return any_engine


@pytest.fixture
def publish():
    """A function that serves a shop's orders; it yields the feed's URL."""

    def publish(engine, *, port=0, routes=None, **options):
        given = {"partition": "part", "partitions": 2, "data": "data"} | options
        feed = TableFeed(orders, **given)
        routes = feed_routes("", feed, engine, **({"arrow": True} | (routes or {})))
        return serving(Starlette(routes=routes), port)

    return publish


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.test_all)])
def archive(request, tmp_path):
    """An archive whose files are shared: in a folder, or by URLs that a store signs."""
    if request.param == "folder":
        return Archive(tmp_path / "archive", shared=(tmp_path / "archive").as_uri())
    return Archive(s3_store(request.getfixturevalue("s3_url")), shared="signed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let one process have all tests of the session, and bear with its first test."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))

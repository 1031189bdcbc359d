"""Fixtures that tests share: a consumer's database, and shops with their files."""

from itertools import count

import pytest
from harness.archives import s3_server, s3_store
from harness.calling import async_call, pool_call, sync_call
from harness.databases import new_database
from harness.landed import flat, small, stamped
from harness.landed import orders as landed_orders
from harness.published import install
from harness.readers import mounted
from harness.shop import fill, orders, write
from harness.statements import add
from harness.waiting import meanwhile
from obstore.store import S3Store
from sqlalchemy import create_engine

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.retention import Retention


@pytest.fixture(scope="session", params=["sqlite", "postgresql", "mariadb"])
def shop_url(request, tmp_path_factory):
    """The URL of a database that stays, on each database in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}"
        return
    with new_database(request.getfixturevalue(f"{request.param}_server_url")) as url:
        yield url


@pytest.fixture(scope="session")
def shop_engine(shop_url):
    """An engine of it."""
    engine = create_engine(shop_url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def s3_url():
    """The URL of a server that speaks S3."""
    with s3_server() as url:
        yield url


@pytest.fixture
def tables(engine):
    """An engine with tables of every type of column, of each database in turn."""
    for table in (landed_orders, small, flat, stamped):
        table.create(engine)
    return engine


@pytest.fixture(params=[sync_call, pool_call, async_call], ids=["sync", "pool", "async"])
def call(request):
    """A function that calls a method of a client, by default `fetch`, with each client in turn."""
    return request.param


@pytest.fixture(
    params=[sync_call, pool_call, pytest.param(async_call, marks=pytest.mark.test_all)],
    ids=["sync", "pool", "async"],
)
def any_call(request):
    """A function that calls a method of a client, for what both clients share."""
    return request.param


@pytest.fixture
def shop(any_engine):
    """The database of a shop with two hundred orders in two partitions."""
    return fill(any_engine, 200, partitions=2)


@pytest.fixture
def publish():
    """A function that serves a shop's orders; it yields the feed's URL."""

    def publish(engine, **options):
        given = {"partition": "part", "partitions": 2, "data": "data"} | options
        return mounted(TableFeed(orders, **given), engine, arrow=True)

    return publish


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.test_all)])
def archive(request, tmp_path):
    """An archive whose files are shared: in a folder, or by URLs that a store signs."""
    if request.param == "folder":
        return Archive(tmp_path / "archive", shared=(tmp_path / "archive").as_uri())
    return Archive(s3_store(request.getfixturevalue("s3_url")), shared="signed")


@pytest.fixture
def origins(archive):
    """The origin of the files, which a reader has to allow."""
    store = archive.objects.store
    return store.config["endpoint"] if isinstance(store, S3Store) else "file://"


@pytest.fixture
def sealed(any_engine, archive):
    """A feed of three partitions, of which 60 events of 90 are in files of 20."""
    fill(any_engine, 60, partitions=3)
    options = {"data": "data", "partition": "part", "partitions": 3}
    feed = TableFeed(orders, **options, retention=Retention(), archive=archive)
    install(feed, any_engine)
    feed.bind(any_engine).seal(segment_events=20)
    write(any_engine, 30, first=60, partitions=3)
    return feed


@pytest.fixture
def writing():
    """A context in which two writers append events of some partitions, two at a time."""

    def writing(engine, partitions, first):
        numbers = count(first)

        def write():
            pair = (next(numbers), next(numbers))
            rows = [{"part": partitions[n % len(partitions)], "data": {"n": n}} for n in pair]
            add(engine, orders, rows)

        return meanwhile(write, pause=0.01, threads=2)

    return writing

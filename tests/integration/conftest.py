"""Fixtures of a consumer's database, which tests share and find empty."""

import pytest
from harness.archives import s3_server
from harness.calling import async_call, pool_call, sync_call
from harness.databases import new_database
from harness.landed import flat, orders, small, stamped
from sqlalchemy import create_engine


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
    for table in (orders, small, flat, stamped):
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

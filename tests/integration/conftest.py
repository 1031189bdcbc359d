"""Fixtures of a consumer's database, which tests share and find empty."""

import pytest
from harness.archives import s3_server
from harness.databases import new_database
from harness.deliveries import Shop
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


@pytest.fixture
def sync_shop(shop_engine):
    """A consumer's database on each server."""
    return Shop(shop_engine)


@pytest.fixture
def async_shop(shop_engine, shop_url):
    """A consumer's database on each server, delivered to with asyncio."""
    return Shop(shop_engine, _async(shop_url))


@pytest.fixture(params=["sync", "async"])
def shop(request, shop_engine, shop_url):
    """A consumer's database on each server, delivered to with and without asyncio."""
    return Shop(shop_engine, None if request.param == "sync" else _async(shop_url))


def _async(url):
    return url.replace("sqlite://", "sqlite+aiosqlite://").replace("+pymysql", "+aiomysql")


@pytest.fixture(scope="session")
def s3_url():
    """The URL of a server that speaks S3."""
    with s3_server() as url:
        yield url

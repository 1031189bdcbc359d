"""What tests of a publisher begin with: a shop as their file fills it, or a log that is trimmed."""

import pytest
from harness.log import Log
from harness.published import EVERY_ORDERING, published
from harness.shop import metadata

from zeroeventhub.publisher.retention import Retention


def _filled(module, engine):
    metadata.create_all(engine)
    with engine.begin() as connection:
        module.source().install(connection)
    module.fill(engine)
    return engine


@pytest.fixture
def shop(request, engine):
    """An engine of a database that the test's file fills, on each database."""
    return _filled(request.module, engine)


@pytest.fixture
def feed(request, shop):
    """The feed of the test's file over it."""
    return request.module.source().bind(shop)


@pytest.fixture
def any_shop(request, any_engine):
    """The same on a database of any kind."""
    return _filled(request.module, any_engine)


@pytest.fixture
def any_feed(request, any_shop):
    """The feed of the test's file over that."""
    return request.module.source().bind(any_shop)


@pytest.fixture
def log(request, case):
    """A log in an empty database, whose feed is trimmed."""
    found = Log(request.getfixturevalue(case.database), case)
    found.publish(retention=Retention(), id="id")
    return found


@pytest.fixture(params=EVERY_ORDERING)
def publishing(request):
    """Make a feed over orders on each database, in each of its orderings; and its engine."""
    database, ordering = request.param
    engine = request.getfixturevalue(database)
    return lambda **options: published(engine, ordering=ordering, **options), engine

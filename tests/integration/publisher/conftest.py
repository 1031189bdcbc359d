"""What tests of a publisher begin with: a shop as their file fills it, or a log that is trimmed."""

import pytest
from harness.log import Log
from harness.published import install, published
from harness.shop import metadata

from zeroeventhub.publisher import rows
from zeroeventhub.publisher.retention import Retention


@pytest.fixture(scope="module", autouse=True)
def _few_are_joined():
    """Let a database join the rows of a short page as well: tests have few events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "MANY", 0)
        yield


def _filled(module, engine):
    metadata.create_all(engine)
    install(module.source(), engine)
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


ONE_ORDERING = ["sqlite single-writer", "postgresql sequenced", "mariadb observed"]
REST = ["sqlite sequenced", "postgresql observed", "postgresql gated", "mariadb sequenced"]


@pytest.fixture(
    params=[*ONE_ORDERING, *(pytest.param(rest, marks=pytest.mark.test_all) for rest in REST)]
)
def ordered(request):
    """An engine of an empty database and an ordering: of each database one in `make test`."""
    database, ordering = request.param.split()
    return request.getfixturevalue(database), ordering


@pytest.fixture
def publishing(ordered):
    """Make a feed over orders in an ordering; and its engine."""
    engine, ordering = ordered
    return lambda **options: published(engine, ordering=ordering, **options), engine

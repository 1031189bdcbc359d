"""Stores of cursors that tests write to."""

from itertools import product

import pytest
from harness.stores import at, empty_store, new_store

SERVERS = ["postgresql", "mariadb"]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
"""Levels of isolation that tell statements of a server apart."""


@pytest.fixture
def store(shop_engine):
    """A store that holds nothing, on each database in turn."""
    return empty_store(shop_engine)


@pytest.fixture
def any_store(any_engine):
    """A store that holds nothing, on any database."""
    return new_store(any_engine)


@pytest.fixture(params=product(SERVERS, LEVELS), ids=" ".join)
def leveled_store(request):
    """A store that holds nothing, on each server at each level of isolation."""
    server, level = request.param
    return at(new_store(request.getfixturevalue(server)), level)

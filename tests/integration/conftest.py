"""Fixtures of tests that reach a database or a server."""

import pytest
from harness.stores import new_store


@pytest.fixture
def store(engine):
    """A store whose tables are there, on each database in turn."""
    return new_store(engine)

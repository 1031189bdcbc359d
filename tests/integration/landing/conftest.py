"""Databases with tables of every type of column."""

import pytest
from harness.landed import flat, orders, small, stamped


@pytest.fixture
def tables(engine):
    """An engine whose tables are there, of each database in turn."""
    for table in (orders, small, flat, stamped):
        table.create(engine)
    return engine

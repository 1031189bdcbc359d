"""Fixtures of the tests that show the table in docs/ordering.md."""

import pytest
from harness.databases import cluster
from harness.log import Log, connected


@pytest.fixture
def bare(request, case):
    """A log whose table is not there yet, in an empty database."""
    return Log(request.getfixturevalue(case.database), case)


@pytest.fixture
def log(bare):
    """A log that is published, without events."""
    bare.publish()
    return bare


@pytest.fixture(scope="module")
def primary():
    """A PostgreSQL server of this module's own, which may crash and have standbys."""
    with cluster() as found:
        yield found


@pytest.fixture
def primary_log(primary, case):
    """A log whose table is not there yet, in an empty database of that server."""
    with connected(primary.new_database()) as engine:
        yield Log(engine, case)


@pytest.fixture
def short_rounds(monkeypatch):
    """The low mark of a sequenced feed on PostgreSQL moves on with every event."""
    monkeypatch.setattr("zeroeventhub.publisher.ordering.postgresql_sequenced.ROUND", 1)

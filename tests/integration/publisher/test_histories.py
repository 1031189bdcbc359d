"""Failovers, backups, crashes: consumers go on where nothing was lost, and else are refused."""

import pytest
from harness.databases import new_database
from harness.soak_histories import KINDS, Histories


@pytest.fixture(scope="module")
def histories(mariadb_server_url):
    """Publishers that disasters may befall, on each database."""
    with Histories.open({"mariadb": lambda: new_database(mariadb_server_url)}) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_history_is_told_apart(histories, kind):
    """A cursor whose events are all there goes on by itself; any other is refused for good, and
    nothing is applied.
    """
    found = histories.run(kind, 1)
    assert found.complaints == []
    assert found.counts["goes on"] >= 4
    assert kind.keeps or found.counts["refused"] >= 4


def test_enough_of_every_kind():
    """A long run has two hundred rounds."""
    assert sum(kind.size for kind in KINDS) == 200

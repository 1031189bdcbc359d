"""Choosing an ordering by the database and a name."""

import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering import ORDERINGS, Events, ordering_for

LOG = Table("log", MetaData(), Column("id", Integer, primary_key=True))
EVENTS = Events(LOG, (LOG.c.id,))


@pytest.mark.parametrize(
    ("dialect", "default", "others"),
    [
        ("postgresql", "observed", ["gated", "sequenced"]),
        ("mariadb", "observed", ["sequenced"]),
        ("mysql", "observed", ["sequenced"]),
        ("sqlite", "single-writer", ["sequenced"]),
    ],
)
def test_ordering_is_chosen_by_name(dialect, default, others):
    """A database has orderings by name; the one of no name needs nothing from its user."""
    kinds = {name: type(ordering_for(dialect, EVENTS, name)) for name in (default, *others)}
    assert len({*kinds.values()}) == len(kinds)
    assert type(ordering_for(dialect, EVENTS)) is kinds[default]
    for name in {*ORDERINGS} - {*kinds}:
        with pytest.raises(ConfigurationError, match=f"choose {default} or {' or '.join(others)}"):
            ordering_for(dialect, EVENTS, name)


def test_database_without_an_ordering_is_refused():
    """A database for which there is no ordering is refused with those for which there is one."""
    with pytest.raises(ConfigurationError, match="PostgreSQL, MariaDB, MySQL or SQLite"):
        ordering_for("oracle", EVENTS)

"""What PostgreSQL alone does: how it plans for a feed, and which of its errors pass."""

import psycopg
import sqlalchemy as sa
from harness.shop import orders, write

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.databases.error_codes import is_transient


def test_feed_plans_so_on_postgresql_and_its_host_does_not(postgresql):
    """What a feed reads is planned without sorting, and its host plans as it did before."""
    orders.create(postgresql)
    seen = []

    @sa.event.listens_for(postgresql, "before_cursor_execute")
    def ask(connection, cursor, statement, *_):
        if "orders.data" in statement:
            with connection.connection.cursor() as other:
                names = ("enable_sort", "enable_seqscan")
                seen.extend(other.execute(f"SHOW {name}").fetchone()[0] for name in names)

    write(postgresql, 3)
    TableFeed(orders, data="data").bind(postgresql).read(0, FIRST, 3)
    assert {*seen} == {"off"}
    with postgresql.connect() as connection:
        for name in ("enable_sort", "enable_seqscan"):
            assert connection.scalar(sa.text(f"SHOW {name}")) == "on"


PASSING = "08000 08006 25006 25P03 40001 40P01 53300 55P03 57P01 57P02 57P03 57P05"
STAYING = "22P02 23505 25P02 28P01 3D000 40002 42501 42P01 53100 53200 57014 XX000"


def of_state(state):
    """Make an error of PostgreSQL."""
    error = psycopg.OperationalError("No.")
    error.sqlstate = state
    return error


def test_code_of_an_error_tells_whether_it_passes():
    """A code that passes is transient, and any other one stays."""
    found = [code for code in f"{PASSING} {STAYING}".split() if is_transient(of_state(code))]
    assert " ".join(found) == PASSING

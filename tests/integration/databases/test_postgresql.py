"""What PostgreSQL alone does: how it plans for a feed."""

import sqlalchemy as sa
from harness.shop import orders, write
from harness.statements import scalars

from zeroeventhub import FIRST, TableFeed


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
    for name in ("enable_sort", "enable_seqscan"):
        assert scalars(postgresql, f"SHOW {name}") == ["on"]

"""Inserts that ignore existing rows, and upserts, on each database."""

import sqlalchemy as sa

from zeroeventhub.databases.statements import insert_ignore, upsert

table = sa.Table(
    "counts",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("n", sa.Integer, nullable=False),
)


def test_rows_that_are_there_stay_or_change(engine):
    """An insert counts the keys that were free and changes no other row; an upsert does."""
    table.create(engine)
    with engine.begin() as connection:
        assert insert_ignore(connection, table, []) == 0
        assert insert_ignore(connection, table, [{"id": 1, "n": 1}, {"id": 2, "n": 2}]) == 2
        assert insert_ignore(connection, table, [{"id": 2, "n": 9}, {"id": 3, "n": 3}]) == 1
        upsert(connection, table, {"id": 1, "n": 7}, {"n": table.c.n + 10})
        upsert(connection, table, {"id": 4, "n": 4}, {"n": table.c.n + 10})
        rows = connection.execute(sa.select(table).order_by(table.c.id)).all()
    assert [tuple(row) for row in rows] == [(1, 11), (2, 2), (3, 3), (4, 4)]

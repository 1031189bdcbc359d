"""Tables of events."""

import sqlalchemy as sa


def event_table(name, /, *parts, position="id", **columns):
    """Make a table whose rows are numbered, with columns of the given types."""
    key = sa.Column(position, sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)
    others = (sa.Column(column, kind) for column, kind in columns.items())
    return sa.Table(name, sa.MetaData(), key, *others, *parts, sqlite_autoincrement=True)

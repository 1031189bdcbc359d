"""Statements, as text or made by SQLAlchemy, in transactions of their own."""

from sqlalchemy import func, insert, select, text


def execute(engine, *statements):
    """Execute statements in one transaction."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(_parsed(statement))


def add(engine, table, rows):
    """Insert a row, or a list of them."""
    with engine.begin() as connection:
        connection.execute(insert(table), rows)


def scalars(engine, statement):
    """Return the first column of what a query finds."""
    with engine.connect() as connection:
        return list(connection.scalars(_parsed(statement)))


def count_of(engine, table):
    """Return how many rows a table has."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table))


def _parsed(statement):
    return text(statement) if isinstance(statement, str) else statement

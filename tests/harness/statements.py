"""Statements, as text or made by SQLAlchemy, in transactions of their own."""

from contextlib import contextmanager
from itertools import count

from sqlalchemy import event, func, insert, select, text


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


def behind(engine, number, act):
    """Act behind one of the next statements, counted from 0; yield what is empty until then."""
    return _at(engine, "after_cursor_execute", "", number, act)


def before_query(engine, number, act):
    """Act before one of the next queries, counted from 0; yield what is empty until then."""
    return _at(engine, "before_cursor_execute", "SELECT", number, act)


def before_insert(engine, number, act):
    """Act before one of the next inserts, counted from 0; yield what is empty until then."""
    return _at(engine, "before_cursor_execute", "INSERT", number, act)


@contextmanager
def _at(engine, moment, beginning, number, act):
    statements, done = count(), []

    def execute(_connection, _cursor, statement, *_):
        if statement.startswith(beginning) and next(statements) == number:
            done.append(True)
            act()

    event.listen(engine, moment, execute)
    try:
        yield done
    finally:
        event.remove(engine, moment, execute)

"""Types of the library's own tables in each database, and statements as an operator runs them."""

import pytest
from sqlalchemy import Column, MetaData, String, Table, text
from sqlalchemy.dialects import mysql, postgresql, sqlite

from zeroeventhub.databases import statements as tables

MYSQL, POSTGRESQL, SQLITE = mysql.dialect(), postgresql.dialect(), sqlite.dialect()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (tables.exact(String(9)), ("VARCHAR(9)", "VARCHAR(9)", "VARCHAR(9) COLLATE utf8mb4_bin")),
        (tables.long_text(), ("TEXT", "TEXT", "LONGTEXT COLLATE utf8mb4_bin")),
        (tables.document(), ("JSON", "JSONB", "JSON")),
        (tables.row_number(), ("INTEGER", "BIGINT", "BIGINT")),
    ],
)
def test_type_is_the_one_of_its_database(kind, names):
    """A column has another type where a database has one of its own."""
    assert tuple(kind.compile(one) for one in (SQLITE, POSTGRESQL, MYSQL)) == names


def test_statement_is_text_that_an_operator_runs():
    """A table is created unless it exists, and percent signs are not doubled for a driver."""
    table = Table("t", MetaData(), Column("id", tables.row_number(), primary_key=True))
    assert tables.creation(SQLITE, table).startswith("CREATE TABLE IF NOT EXISTS t (")
    assert tables.statement_text(POSTGRESQL, text("SELECT '%'")) == "SELECT '%'"

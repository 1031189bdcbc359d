"""Which errors of each database are transient, by their codes."""

import sqlite3
from contextlib import closing

import psycopg
import pymysql
import pytest

from zeroeventhub.databases.error_codes import is_transient, store_error


def of_postgresql(state):
    """Make an error of PostgreSQL."""
    error = psycopg.OperationalError("No.")
    error.sqlstate = state
    return error


def of_mysql(number):
    """Make an error of MariaDB or MySQL."""
    return pymysql.err.OperationalError(int(number))


def of_sqlite(name):
    """Make an error of SQLite."""
    error = sqlite3.OperationalError("It is locked.")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{name}")
    return error


PASSING = {
    of_postgresql: "08000 08006 25006 25P03 40001 40P01 53300 55P03 57P01 57P02 57P03 57P05",
    of_mysql: "1020 1040 1047 1053 1158 1159 1160 1161 1180 1203 1205 1213 1412 1613 1614 1792 "
    "1836 1927 2002 2003 2006 2013 2055 3572 4031",
    of_sqlite: "BUSY_RECOVERY BUSY_SNAPSHOT LOCKED_SHAREDCACHE PROTOCOL",
}
STAYING = {
    of_postgresql: "22P02 23505 25P02 28P01 3D000 40002 42501 42P01 53100 53200 57014 XX000",
    of_mysql: "1044 1045 1048 1049 1062 1064 1114 1142 1146 1264 1290 1317 1366 1406 1452 2059",
    of_sqlite: "IOERR IOERR_READ IOERR_LOCK IOERR_BLOCKED READONLY FULL ERROR CANTOPEN "
    "CORRUPT_VTAB NOTADB CONSTRAINT_UNIQUE INTERRUPT",
}


@pytest.mark.parametrize("make", PASSING)
def test_error_is_transient_by_its_code(make):
    """An error is transient if its code is, whatever its details, and any other one stays."""
    codes = f"{PASSING[make]} {STAYING[make]}".split()
    assert " ".join(code for code in codes if is_transient(make(code))) == PASSING[make]


def test_error_of_a_store_that_is_away_has_its_code(tmp_path):
    """Where one class has many reasons, the number or name of the reason is said, and no text."""
    with closing(sqlite3.connect(tmp_path / "store.db", timeout=0)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with (
            closing(sqlite3.connect(tmp_path / "store.db", timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError) as locked,
        ):
            other.execute("BEGIN IMMEDIATE")
    said = {"OperationalError SQLITE_BUSY": locked.value, "OperationalError 1213": of_mysql(1213)}
    said["OperationalError"] = of_postgresql("40P01")
    for kind, error in said.items():
        assert str(store_error(error)).endswith(f"asked to try again ({kind}).")

"""Processes that are forked from one that has used its engine."""

import subprocess
import sys

import pytest

FORKING = """
import os, sys
from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine, text
from zeroeventhub import CursorStore, TableFeed

key = Column("id", Integer, primary_key=True)
orders = Table("orders", MetaData(), key, Column("data", JSON))
engine = create_engine(sys.argv[1])
{kept}
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE copied (n INTEGER)"))
begun, rolled_back = os.pipe(), os.pipe()
if child := os.fork():
    os.read(begun[0], 1)
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO copied VALUES (1)"))
        connection.rollback()
    os.write(rolled_back[1], b".")
    if os.waitpid(child, 0)[1]:
        sys.exit("The child failed.")
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT n FROM copied")).all() == [2]
else:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO copied VALUES (2)"))
        os.write(begun[1], b".")
        os.read(rolled_back[0], 1)
"""


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    "kept", ["kept = CursorStore(engine)", "kept = TableFeed(orders, data='data').bind(engine)"]
)
def test_forked_processes_have_transactions_of_their_own(server, kept, request):
    """What a process rolls back is nothing that one forked from it has done."""
    url = request.getfixturevalue(f"{server}_url")
    program = FORKING.format(kept=kept)
    subprocess.run([sys.executable, "-c", program, str(url)], check=True, timeout=60)


IN_MEMORY = """
import os, sys
from sqlalchemy import create_engine
from zeroeventhub import CursorStore

engine = create_engine("sqlite://")
store = CursorStore(engine)
with engine.begin() as connection:
    store.create_tables(connection)
    store.load(connection, "billing", 0, start="_first")
if (child := os.fork()) and os.waitpid(child, 0)[1]:
    sys.exit("The child failed.")
with engine.connect() as connection:
    assert store.cursors(connection, "billing") == {0: "_first"}
"""


def test_forked_process_has_a_copy_of_a_database_in_memory():
    """A process that is forked from one with an SQLite database in memory finds what is there."""
    subprocess.run([sys.executable, "-c", IN_MEMORY], check=True, timeout=60)

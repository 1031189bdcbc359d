"""The guide to rows that change: each way to make events of changes works as it stands."""

import re

import pytest
from harness.guides import DOCUMENTS, guide
from harness.statements import execute
from sqlalchemy import JSON, MetaData, Table, type_coerce

from zeroeventhub import FIRST, TableFeed

TEXT = (DOCUMENTS / "changes.md").read_text()


def data(feed):
    """Return the data of all events of a feed with one partition."""
    return [event.data for event in feed.read(0, FIRST, 100).events]


def test_change_and_event_are_committed_together(tmp_path, monkeypatch):
    """An order is paid once, with its event, and a change that fails leaves no event."""
    monkeypatch.chdir(tmp_path)
    with guide("changes.md") as piece:
        names = piece("same")
        engine, pay, feed = (names[name] for name in ("engine", "pay", "feed"))
        execute(engine, names["orders"].insert().values(id=17, state="placed"))
        pay(17, 12)
        for order in (17, 18):
            with pytest.raises(ValueError, match="cannot be paid"):
                pay(order, 12)
        assert data(feed.bind(engine)) == [{"order": 17, "amount": 12}]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_trigger_makes_an_event_of_each_change(request, database):
    """Rows that are inserted, updated and deleted become events, and what is rolled back none."""
    engine = request.getfixturevalue(database)
    script = re.search(rf"<!-- trigger {database} -->\n```sql\n(.*?)```", TEXT, re.DOTALL)[1]
    execute(engine, "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        driver.executescript(script) if database == "sqlite" else driver.execute(script)
    insert = "INSERT INTO customers VALUES (1, 'ada'), (2, 'bob')"
    execute(engine, insert)
    with engine.connect() as connection:
        connection.exec_driver_sql("UPDATE customers SET name = 'eve'")
        connection.rollback()
    execute(engine, "UPDATE customers SET name = 'bea' WHERE id = 2")
    execute(engine, "DELETE FROM customers WHERE id = 1")
    changes = Table("customer_changes", MetaData(), autoload_with=engine)
    documents = changes.c.data
    if database == "sqlite":
        documents = type_coerce(documents, JSON).label("data")
    source = TableFeed(changes, position="position", data=documents, time="changed_at")
    assert data(source.bind(engine)) == [
        {"operation": "insert", "id": 1, "name": "ada", "before": None},
        {"operation": "insert", "id": 2, "name": "bob", "before": None},
        {"operation": "update", "id": 2, "name": "bea", "before": {"name": "bob"}},
        {"operation": "delete", "id": 1, "name": None, "before": {"name": "ada"}},
    ]

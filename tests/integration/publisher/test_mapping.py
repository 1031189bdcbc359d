"""Further attributes of a CloudEvent, made of columns."""

import pytest
from harness.tables import event_table
from sqlalchemy import JSON, Integer, String, insert

from zeroeventhub import FIRST, TableFeed

TEXTS = {"person": String(20), "operation": String(20), "trace": String(60)}
persons = event_table("persons", **TEXTS, size=Integer)

ATTRIBUTES = {"subject": "person", "method": "operation", "traceparent": "trace", "size": "size"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("headers", [None, {"h": "id"}], ids=["by the database", "by Python"])
def test_attributes_are_taken_from_columns(engine, headers):
    """Each is in the envelope by its name, as text, unless its column is NULL or empty."""
    persons.metadata.create_all(engine)
    with engine.begin() as connection:
        rows = [("ann", "PUT", TRACE, 5), ("", None, "", None)]
        for row in rows:
            values = dict(zip(("person", "operation", "trace", "size"), row, strict=True))
            connection.execute(insert(persons), values)
    feed = TableFeed(
        persons, data=["id"], cloudevents="/p", attributes=ATTRIBUTES, headers=headers
    ).bind(engine)
    full, bare = (event.data for event in feed.read(0, FIRST, 9).events)
    expected = {"subject": "ann", "method": "PUT", "traceparent": TRACE, "size": "5"}
    assert {name: full[name] for name in ATTRIBUTES} == expected
    assert set(full) - set(bare) == set(ATTRIBUTES)


@pytest.mark.parametrize("name", ['say "hi"', "a\\b\n", "Zo\u00eb", "7"])
def test_text_in_a_column_of_json_is_an_attribute_without_escapes(engine, name):
    """An id, a type or a header that is a string of JSON is the text that the string stands for."""
    documents = event_table("documents", name=JSON)
    documents.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(documents), {"name": name})
    named = {"id": "name", "type": "name", "headers": {"h": "name"}}
    feed = TableFeed(documents, data=["id"], cloudevents=True, **named).bind(engine)
    (event,) = feed.read(0, FIRST, 1).events
    assert (event.data["id"], event.data["type"], event.headers) == (name, name, {"h": name})

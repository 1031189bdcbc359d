"""A publisher of the changes of ordinary tables: run it with `uvicorn capture:app`."""

from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, Text, create_engine, inspect
from starlette.applications import Starlette

from zeroeventhub import Capture, EventLog, feed_routes

metadata = MetaData()
person = Table("person", metadata, Column("id", Integer, primary_key=True), Column("name", Text))
address = Table(
    "address",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("person", ForeignKey("person.id")),
    Column("city", Text),
)
changes = EventLog(metadata, "changes")
capture = Capture(changes, "person", "address")

engine = create_engine("sqlite:///shop.db")
if not inspect(engine).has_table("changes"):
    with engine.begin() as connection:
        metadata.create_all(connection)
        capture.install(connection)

app = Starlette(routes=feed_routes("/changes", changes.feed(cloudevents="/shop"), engine))

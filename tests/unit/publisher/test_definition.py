"""Options that do not go together, or that the table does not have, are refused by TableFeed."""

import pytest
from harness.shop import orders
from harness.tables import event_table
from obstore.store import MemoryStore
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.orm import declarative_base

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Compaction, Retention

persons = event_table(
    "persons", person=String(20), version=Integer, name=String(20), photo=LargeBinary
)
bare = Table("bare", MetaData(), Column("n", Integer))
texts = Table("texts", MetaData(), Column("id", String(9), primary_key=True))
unique = UniqueConstraint("person", "version")


class Person(declarative_base()):
    """Have a name."""

    __tablename__ = "people"
    id = Column(Integer, primary_key=True)
    name = Column(String(20))


class Customer(Person):
    """Be a person with a table of one's own."""

    __tablename__ = "customers"
    id = Column(ForeignKey("people.id"), primary_key=True)


counted = event_table("counted", unique, person=String(9), version=Integer)
COMPACTED = {"key": "customer", "retention": Retention(), "compaction": Compaction()}
SEALED = {"archive": Archive(MemoryStore()), "retention": Retention()}
VERSIONS = {"key": "person", "version": "version"}
ENVELOPE = {"cloudevents": True, "attributes": {"subject": "person"}}


@pytest.mark.parametrize(
    ("table", "options", "complaint"),
    [
        ("orders", {}, "neither a Table nor a class"),
        (bare, {}, "no primary key of one column"),
        (bare, {"ordering": "sequenced"}, "no primary key by which"),
        (texts, {}, "whole numbers that the database draws"),
        (orders, {"position": "kind"}, "whole numbers that the database draws"),
        (orders, {"position": orders.c.id + 1}, "a column of the table"),
        (orders, {"time": "nothing"}, "has no column 'nothing'"),
        (
            orders,
            {"data": ["id", persons.c.name]},
            "persons.name is of another table than 'orders'",
        ),
        (orders, {"key": persons.c.name + "x"}, "is of another table than 'orders'"),
        (Customer, {"data": [Customer.name]}, "people.name is of another table than 'customers'"),
        (orders, {"partitions": 2}, "Say which column"),
        (orders, {"partitions": 0, "partition": "part"}, "partitions, not 0"),
        (orders, {"partitions": "4", "partition": "part"}, "partitions, not '4'"),
        (orders, {"partitions": 4.0, "partition": "part"}, "partitions, not 4.0"),
        (orders, {"append": True}, "append is what appends events"),
        (orders, {"partition": "kind"}, "a whole number from 0"),
        (orders, {"retention": Retention(schema="other")}, r"Retention\(schema=None\)"),
        (orders, {"progress": Progress(schema="other")}, r"Progress\(schema=None\)"),
        (persons, ENVELOPE | {"cloudevents": False}, "give cloudevents"),
        (persons, ENVELOPE | {"attributes": {"Subject": "person"}}, "cannot be a further"),
        (persons, ENVELOPE | {"attributes": {"id": "person"}}, "cannot be a further"),
        (persons, ENVELOPE | {"attributes": {"subject": "nobody"}}, "no column"),
        (persons, {"key_history": True}, "give version as well"),
        (persons, VERSIONS | {"key": None}, "give key as well"),
        (persons, VERSIONS | {"key": persons.c.person + "x"}, "key and version are columns"),
        (persons, VERSIONS | {"version": "name"}, "is a whole number"),
        (persons, VERSIONS | {"key": "photo"}, "text, whole"),
        (persons, VERSIONS, "declared to be unique"),
        (orders, COMPACTED | {"key": None}, "give key"),
        (orders, COMPACTED | {"key": orders.c.customer + "x"}, "has to be a column"),
        (orders, COMPACTED | {"retention": None}, "retention"),
        (orders, COMPACTED | {"compaction": Compaction(tombstone=orders.c.kind == "x")}, "time"),
        (orders, {"retention": True}, "retention is a Retention, not True"),
        (orders, SEALED | {"archive": "/var/history"}, "archive is an Archive"),
        (orders, SEALED | {"mutable": True}, "leave out mutable"),
        (orders, SEALED | {"partition": "part"}, "fixed number of partitions"),
        (orders, SEALED | {"retention": None}, "which events only the archive has"),
        (counted, VERSIONS | COMPACTED | {"key": "person"}, "leave out version or compaction"),
    ],
)
def test_options_that_cannot_be_are_refused(table, options, complaint):
    """What a feed cannot be made from is said when it is made."""
    with pytest.raises(ConfigurationError, match=complaint):
        TableFeed(table, **options)


@pytest.mark.parametrize("through", ["sqlite:///shop.db", None, orders])
def test_feed_reads_through_an_engine_alone(through):
    """What is no engine is said when the feed is bound to it."""
    with pytest.raises(ConfigurationError, match="A feed reads through an engine"):
        TableFeed(orders, data=["id"]).bind(through)

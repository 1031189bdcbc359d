"""The tables of a round: two feeds, the counters of their keys, and others beside them."""

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Integer, Table, func, insert

from zeroeventhub import TableFeed

PARTITIONS = 3
KEYS_OF_A_FEED = 12
NUMBERS = 1000

metadata = sa.MetaData()


def _table(name: str, *columns: str, nullable: bool = True) -> Table:
    return Table(
        name,
        metadata,
        Column("id", sa.BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        *(Column(column, Integer, nullable=nullable) for column in columns),
        sqlite_autoincrement=True,
    )


# A transaction may write to both feeds; the first of them has the readers that share one object.
events, others = FEEDS = [
    _table(name, "part", "key", "n", nullable=False) for name in ("events", "others")
]
for _feed in FEEDS:
    _feed.append_constraint(sa.UniqueConstraint("key", "n"))
    sa.Index(f"{_feed.name}_by_part", _feed.c.part, _feed.c.id)

# Who writes an event of a key counts here first, in the same transaction: writers of a key take
# turns, and n rises in the order of their commits, without gaps.
keys = Table(
    "keys",
    metadata,
    Column("key", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, nullable=False),
)
KEYS = {
    feed: range(index * KEYS_OF_A_FEED, (index + 1) * KEYS_OF_A_FEED)
    for index, feed in enumerate(FEEDS)
}

# A row of requests becomes an event by a trigger.
requests = _table("requests", "part", "key", "n")
elsewhere = _table("elsewhere", "n")
numbers = Table("numbers", metadata, Column("n", Integer, primary_key=True, autoincrement=False))

_TRIGGERS = {
    "postgresql": """CREATE FUNCTION answer() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO events (part, key, n) VALUES (NEW.part, NEW.key, NEW.n);
            RETURN NULL;
        END $$;
        CREATE TRIGGER answer AFTER INSERT ON requests FOR EACH ROW EXECUTE FUNCTION answer()""",
    "mariadb": """CREATE TRIGGER answer AFTER INSERT ON requests FOR EACH ROW
        INSERT INTO events (part, `key`, n) VALUES (NEW.part, NEW.`key`, NEW.n)""",
    "sqlite": """CREATE TRIGGER answer AFTER INSERT ON requests BEGIN
        INSERT INTO events (part, key, n) VALUES (NEW.part, NEW.key, NEW.n);
        END""",
}
for _dialect, _statement in _TRIGGERS.items():
    sa.event.listen(metadata, "after_create", sa.DDL(_statement).execute_if(dialect=_dialect))


def create(connection: Connection) -> None:
    """Create the tables, with every key at zero."""
    metadata.create_all(connection)
    every = [key for of_feed in KEYS.values() for key in of_feed]
    connection.execute(insert(keys), [{"key": key, "n": 0} for key in every])
    connection.execute(insert(numbers), [{"n": n} for n in range(1, NUMBERS + 1)])


def published(table: Table, ordering: str) -> TableFeed:
    """Publish a table of events in one of the orderings."""
    columns = {"position": "id", "data": ["key", "n"], "partition": "part"}
    return TableFeed(table, ordering=ordering, partitions=PARTITIONS, **columns)


def truth(connection: Connection, feed: Table) -> dict[int, int]:
    """Return the last number of each key; every number from one up to it has been committed."""
    counted = sa.select(feed.c.key, func.max(feed.c.n), func.min(feed.c.n), func.count()).group_by(
        feed.c.key
    )
    last = {}
    for key, highest, lowest, count in connection.execute(counted):
        assert (lowest, highest) == (1, count), f"key {key} of {feed} has gaps of its own"
        last[key] = highest
    return last

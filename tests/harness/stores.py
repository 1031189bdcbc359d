"""Short ways to a store: each call in a transaction of its own."""

from sqlalchemy import Engine, delete, update

from zeroeventhub import CursorStore

NAME = "billing"


def new_store(engine: Engine) -> CursorStore:
    """Make a store whose tables are there."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
    return store


def empty_store(engine: Engine) -> CursorStore:
    """Make a store whose tables are there and hold nothing, in a database that tests share."""
    store = new_store(engine)
    with engine.begin() as connection:
        for table in store.tables.all():
            connection.execute(delete(table))
    return store


def at(store: CursorStore, level: str) -> CursorStore:
    """Return the same store at another level of isolation."""
    return CursorStore(store.engine.execution_options(isolation_level=level))


def call(store, method, *arguments, name=NAME, **named):
    """Call a method of the store, or of one of its parts, for a consumer."""
    with store.engine.begin() as connection:
        return method(connection, name, *arguments, **named)


def load(store, partition, **options):
    """Return a consumer's place, without a lease."""
    return call(store, store.load, partition, **options)


def enter(store, partition, owner, **options):
    """Return a consumer's place, by right of a lease."""
    return call(store, store.enter, partition, owner, **options)


def move(store, partition, place, new):
    """Move a cursor."""
    call(store, store.advance, partition, place, new)


def end(store, partition, place):
    """Write down that a partition was read to its end."""
    with store.engine.begin() as connection:
        result = connection.execute(store.end(NAME, partition, place))
        store.confirm(result, NAME, partition)


def claim(store, owner, wanted, *, seconds=30.0, share=True):
    """Claim partitions."""
    return call(store, store.leases.claim, owner, wanted, seconds=seconds, share=share)


def expire(store, *owners):
    """Let the time pass for which some processes hold leases and are members."""
    with store.engine.begin() as connection:
        for table in (store.tables.leases, store.tables.members):
            connection.execute(
                update(table).where(table.c.owner.in_(owners)).values(expires_at=1.0)
            )

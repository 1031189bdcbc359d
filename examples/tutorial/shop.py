"""The shop: a log of its orders in SQLite, a command that appends to it, and its feed."""

from sqlalchemy import MetaData, create_engine
from starlette.applications import Starlette

from zeroeventhub import EventLog, ExpectedVersion, NewEvent, feed_routes

engine = create_engine("sqlite:///shop.db", connect_args={"timeout": 30})
metadata = MetaData()
orders = EventLog(metadata, "orders", partitions=4)


def open_shop() -> None:
    """Create the log, and let readers and writers of SQLite work concurrently."""
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    metadata.create_all(engine)


def place(request: str, customer: str, amount: int) -> int:
    """Place an order; return how many its customer has placed by now.

    A repeated request places the order once, since the request is the id of the event.
    """
    placed = NewEvent("OrderPlaced", {"customer": customer, "amount": amount}, id=request)
    with engine.begin() as connection:
        return orders.append_to(
            connection, customer, [placed], expected_version=ExpectedVersion.ANY
        )


app = Starlette(
    routes=feed_routes("/orders", orders.feed(cloudevents="/shop", key_history=True), engine)
)

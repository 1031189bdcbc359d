"""Billing, by the models that `zeroeventhub codegen` wrote of the shop's events into models.py."""

from models import MODELS, Placed, PlacedInEuros, Sent
from sqlalchemy import (
    Column,
    Connection,
    Date,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
)

from zeroeventhub import Client, Consumer, CursorStore, TypeFilter

engine = create_engine("sqlite:///billing.db")
store = CursorStore(engine)
columns = [
    Column("number", Integer, primary_key=True),
    Column("amount", Float),
    Column("currency", String(3)),
    Column("due", Date),
]
invoices = Table("invoices", MetaData(), *columns)
with engine.begin() as connection:
    store.create_tables(connection)
    invoices.create(connection, checkfirst=True)


def upcast(old: PlacedInEuros) -> Placed:
    """Turn an event of the old form into one of the present form."""
    return Placed(order=old.order, customer=old.customer, amount=old.amount, currency="EUR")


def bill(connection: Connection, event: Placed | Sent) -> None:
    """Write an invoice of an order, which is due when the order arrives."""
    match event:
        case Placed(order=number, amount=amount, currency=currency):
            row = {"number": number, "amount": amount, "currency": currency}
            connection.execute(invoices.insert(), row)
        case Sent(order=number, expected=due):
            update = invoices.update().where(invoices.c.number == number)
            connection.execute(update, {"due": due})


consumer = Consumer(
    Client("http://127.0.0.1:8000/orders"),
    store,
    "billing",
    types=TypeFilter(MODELS.keys()),
    models={**MODELS, "order.placed": upcast},
)
consumer.run(bill, handle_signals=True)

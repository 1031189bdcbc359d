"""The billing service with typed events, an ORM session, and orders that cannot be billed."""

from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from zeroeventhub import Client, Consumer, CursorStore, Failures


@dataclass
class Order:
    """An order of the shop; an event that does not have this form is set aside."""

    customer: str
    amount: float


class Base(DeclarativeBase):
    """The billing service's own tables."""


class Invoice(Base):
    """What a customer has to pay."""

    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[float]


def invoice(session: Session, order: Order) -> None:
    """Write an invoice; the cursor moves in the same transaction."""
    session.add(Invoice(customer=order.customer, amount=order.amount))


engine = create_engine("sqlite:///billing.db")
store = CursorStore(engine)
with engine.begin() as connection:
    store.create_tables(connection)
    Base.metadata.create_all(connection)

client = Client("http://127.0.0.1:8000/orders")
consumer = Consumer(client, store, "billing", failures=Failures(then="set-aside"))
consumer.run(invoice, handle_signals=True)

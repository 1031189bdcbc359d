"""A consumer to be tested: it writes an invoice for each order, and adds up what customers owe."""

from dataclasses import dataclass

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table

tables = MetaData()
invoices = Table("invoices", tables, Column("number", Integer), Column("amount", Integer))
customers = Table(
    "customers", tables, Column("name", String(40), primary_key=True), Column("owes", Integer)
)


@dataclass
class Order:
    """What an event of the shop says."""

    number: int
    customer: str
    amount: int


def invoice(connection: Connection, order: Order) -> None:
    """Write an invoice, and add its amount to what the customer owes."""
    if order.amount < 0:
        raise ValueError("An order has an amount of 0 or more.")
    of_customer = customers.c.name == order.customer
    owes = customers.update().where(of_customer).values(owes=customers.c.owes + order.amount)
    if not connection.execute(owes).rowcount:
        row = {"name": order.customer, "owes": order.amount}
        connection.execute(customers.insert().values(row))
    connection.execute(invoices.insert().values({"number": order.number, "amount": order.amount}))

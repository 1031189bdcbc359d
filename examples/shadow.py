"""Bill each order into a table, as the consumer of a name: `python shadow.py NAME TABLE`.

Run it with another name and another table, and it reads along beside the consumer that there is.
"""

import sys

from sqlalchemy import Column, MetaData, Numeric, Table, Text, create_engine

from zeroeventhub import Client, Consumer, CursorStore

name, table = sys.argv[1:]
engine = create_engine("sqlite:///billing.db")
store = CursorStore(engine)
invoices = Table(table, MetaData(), Column("customer", Text), Column("amount", Numeric))
with engine.begin() as connection:
    store.create_tables(connection)
    invoices.create(connection, checkfirst=True)

# Without follow=False it goes on at the head.
for page in Consumer(Client("http://127.0.0.1:8000/orders"), store, name, follow=False):
    with engine.begin() as connection:
        page.commit(connection)
        page.insert_into(invoices, connection)

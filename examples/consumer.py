"""A billing service that follows the shop's orders, each exactly once."""

from sqlalchemy import create_engine, text

from zeroeventhub import Client, Consumer, CursorStore

engine = create_engine("sqlite:///billing.db")
store = CursorStore(engine)
with engine.begin() as connection:
    store.create_tables(connection)
    connection.execute(text("CREATE TABLE IF NOT EXISTS invoices (customer TEXT, amount NUMERIC)"))

for page in Consumer(Client("http://127.0.0.1:8000/orders"), store, "billing"):
    with engine.begin() as connection:
        page.commit(connection)
        for event in page.events:
            connection.execute(text("INSERT INTO invoices VALUES (:customer, :amount)"), event.data)

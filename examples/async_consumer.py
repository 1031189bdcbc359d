"""The billing service with asyncio (pip install aiosqlite)."""

import asyncio

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, AsyncPendingPage, CursorStore


async def invoice(connection: AsyncConnection, page: AsyncPendingPage) -> None:
    """Write the effects of a page; its cursor moves in the same transaction."""
    for event in page.events:
        statement = text("INSERT INTO invoices VALUES (:customer, :amount)")
        await connection.execute(statement, event.data)


async def main() -> None:
    """Follow the shop's orders until SIGTERM."""
    engine = create_async_engine("sqlite+aiosqlite:///billing.db")
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(store.create_tables)
        table = "CREATE TABLE IF NOT EXISTS invoices (customer TEXT, amount NUMERIC)"
        await connection.execute(text(table))
    async with httpx.AsyncClient() as http:
        client = AsyncClient("http://127.0.0.1:8000/orders", http)
        await AsyncConsumer(client, store, "billing").run(invoice, handle_signals=True)
    await engine.dispose()


asyncio.run(main())

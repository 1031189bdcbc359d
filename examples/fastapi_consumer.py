"""The billing service in a web application (pip install fastapi aiosqlite)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Response
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, AsyncPendingPage, CursorStore

ORDERS = os.environ.get("ORDERS", "http://127.0.0.1:8000/orders")

engine = create_async_engine("sqlite+aiosqlite:///billing.db")
store = CursorStore(engine)


async def invoice(connection: AsyncConnection, page: AsyncPendingPage) -> None:
    """Write the effects of a page; its cursor moves in the same transaction."""
    for event in page.events:
        statement = text("INSERT INTO invoices VALUES (:customer, :amount)")
        await connection.execute(statement, event.data)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Consume while the application serves; stop when it ends."""
    async with engine.begin() as connection:
        await connection.run_sync(store.create_tables)
        table = "CREATE TABLE IF NOT EXISTS invoices (customer TEXT, amount NUMERIC)"
        await connection.execute(text(table))
    async with httpx.AsyncClient() as http:
        consumer = AsyncConsumer(AsyncClient(ORDERS, http), store, "billing")
        app.state.running = asyncio.create_task(consumer.run(invoice))
        yield
        consumer.stop()
        await app.state.running
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> Response:
    """Answer 503 once the consumer has ended with an error."""
    return Response(status_code=503 if app.state.running.done() else 200)


@app.get("/invoices")
async def invoices() -> dict[str, int]:
    """Count the invoices."""
    async with engine.connect() as connection:
        count = await connection.scalar(text("SELECT count(*) FROM invoices"))
    return {"invoices": count}

"""A shop in Flask that publishes its orders, and bills the orders of any such feed.

pip install flask-sqlalchemy a2wsgi gunicorn
gunicorn flask_shop:app
flask --app flask_shop bill http://127.0.0.1:8000/feeds/orders
"""

from typing import Any

import click
from a2wsgi import ASGIMiddleware
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import JSON
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from zeroeventhub import Client, Consumer, CursorStore, TableFeed, feed_routes


class Base(DeclarativeBase):
    """The tables of the shop."""


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.db"
app.config.from_prefixed_env("SHOP")
db = SQLAlchemy(app, model_class=Base)


class Order(db.Model):  # type: ignore[name-defined]
    """An order, which is an event of the feed."""

    __tablename__ = "orders"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - as SQLAlchemy has it
    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


class Invoice(db.Model):  # type: ignore[name-defined]
    """An invoice for an order."""

    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[float]


with app.app_context():
    db.create_all()
    routes = feed_routes("/orders", TableFeed(Order, data="data"), db.engine)
feeds = ASGIMiddleware(Starlette(routes=routes))
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/feeds": feeds})  # type: ignore[method-assign]


@app.post("/orders")
def order() -> tuple[str, int]:
    """Place an order."""
    db.session.add(Order(data=request.json))
    db.session.commit()
    return "", 201


@app.cli.command()
@click.argument("url")
def bill(url: str) -> None:
    """Write an invoice for each order of a feed."""
    store = CursorStore(db.engine)
    store.create_tables(db.session)
    db.session.commit()
    for page in Consumer(Client(url), store, "billing"):
        page.commit(db.session)
        db.session.add_all(Invoice(**event.data) for event in page.events)
        db.session.commit()

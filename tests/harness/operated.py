"""A shop and its billing in the databases that the commands of guides name."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import create_engine, text

from harness.command_line import output_of
from harness.published import install
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import add, execute, scalars
from harness.stores import new_store
from zeroeventhub import Client, Consumer, Event, Progress, Retention, TableFeed

ADDRESS = "http://127.0.0.1:8000/orders"
"""Where guides have the feed of the shop."""


def carry_out(line: str, places: Mapping[str, object], answer: str | None = None) -> str:
    """Run a command of a guide with other places than the guide's; return what it prints."""
    for place, here in places.items():
        line = line.replace(place, str(here))
    program, *words = shlex.split(line.removeprefix("$ "))
    assert program == "zeroeventhub"
    return output_of(*words, answer=answer)


class Shop:
    """A shop in shop.db, whose orders its consumer `billing` bills in billing.db."""

    def __init__(self, url: str) -> None:
        """Make the tables of billing."""
        self.url = url
        self.orders = create_engine("sqlite:///shop.db")
        self.billing = create_engine("sqlite:///billing.db")
        self.store = new_store(self.billing)
        execute(self.billing, "CREATE TABLE invoices (n INTEGER)")

    def place(self, *numbers: int) -> None:
        """Place orders of these numbers."""
        now = datetime.now(UTC)
        add(self.orders, orders, [{"placed": now, "data": {"n": number}} for number in numbers])

    def bill(self, apply: Callable[..., object] | None = None, **options: Any) -> None:
        """Let billing apply what it can read."""

        def invoice(connection: Any, event: Event) -> None:
            connection.execute(text("INSERT INTO invoices VALUES (:n)"), event.data)

        client = Client(self.url)
        Consumer(client, self.store, "billing", follow=False, **options).run(apply or invoice)

    @property
    def invoices(self) -> list[int]:
        """The numbers of the orders that were billed."""
        return scalars(self.billing, "SELECT n FROM invoices ORDER BY n")


@contextmanager
def shop_in_files() -> Iterator[Shop]:
    """Serve a shop out of files in this folder, with three orders that were billed."""
    engine = create_engine("sqlite:///shop.db")
    metadata.create_all(engine)
    feed = TableFeed(orders, data="data", time="placed", retention=Retention(), progress=Progress())
    install(feed, engine)
    with mounted(feed, engine) as url:
        shop = Shop(url)
        shop.place(0, 1, 2)
        shop.bill()
        yield shop
    for each in (engine, shop.orders, shop.billing):
        each.dispose()

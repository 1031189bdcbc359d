"""The same log by zeroeventhub, which every step gives its failure to; and what the steps share."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, NullPool, create_engine

from zeroeventhub import FIRST, EventLog, NewEvent, Retention

metadata = MetaData()
log = EventLog(metadata, "orders")
feed = log.feed(retention=Retention())


def opened(folder: Path) -> Engine:
    """Open the database in a folder; create the log there unless it exists."""
    database = f"sqlite:///{folder / 'shop.db'}"
    engine = create_engine(database, poolclass=NullPool, connect_args={"timeout": 0.1})
    metadata.create_all(engine)
    with engine.begin() as connection:
        feed.install(connection)
    return engine


def placed(*numbers: int) -> list[NewEvent]:
    """Return the events of orders."""
    return [NewEvent("OrderPlaced", {"order": number}) for number in numbers]


def append(engine: Engine, *numbers: int) -> None:
    """Append orders in a transaction."""
    with engine.begin() as connection:
        log.append(connection, placed(*numbers))


def read(engine: Engine, cursor: str = FIRST, limit: int = 100) -> tuple[list[int], str]:
    """Read the orders after a cursor, and the cursor after them."""
    page = feed.bind(engine).read(0, cursor, limit)
    return numbers(event.data for event in page.events), page.cursor


def numbers(events: Iterable[Any]) -> list[int]:
    """Return the numbers of orders."""
    return [event["order"] for event in events]


def killed(work: Callable[[], object]) -> None:
    """Begin something in a process of its own, and kill that in the middle."""
    if (process := os.fork()) == 0:
        _begun = work()  # kept, so that nobody ends it
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)


def run(*parts: Callable[[Path], None]) -> None:
    """Run the parts of a step, each in an empty folder of its own."""
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            part(Path(folder))

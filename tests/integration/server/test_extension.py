"""An extension of the protocol is a row of a table, from which all else follows."""

from dataclasses import dataclass
from typing import Annotated

import httpx
import pytest
from harness.readers import client_of, kind, mounted
from harness.shop import fill, orders
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, Client, Principal, TableFeed, TypeFilter
from zeroeventhub.protocol import EXTENSIONS, PARTITION, Extension, Parameter
from zeroeventhub.publisher.reader import Reader


@dataclass(frozen=True)
class Distance:
    """An answer of the new extension."""

    cursor: str
    weight: Annotated[int, "by a factor"]


ROW = Extension(
    name="weighing",
    path="weight",
    parameters=(
        PARTITION,
        Parameter("cursor", "cursor"),
        Parameter("factor", "number", 2, least=1, most=9, argument="factor"),
    ),
    method="weigh",
    answer=Distance,
    needs="types",
)


class WeighingClient(Client):
    """A client with a method for the new extension."""

    def weigh(self, partition, cursor, factor):
        return self._answer("weighing", partition, cursor, factor)


@pytest.fixture
def weighing(monkeypatch):
    """A row for a new extension, and the query that answers it."""

    def weigh(self, connection, partition, cursor, *, factor):
        return Distance(cursor, factor * self.lag(connection, partition, cursor).events)

    monkeypatch.setitem(EXTENSIONS, "weighing", ROW)
    monkeypatch.setattr(Reader, "weigh", weigh, raising=False)


@pytest.mark.parametrize("driver", ["pysqlite", "aiosqlite"])
def test_new_extension_is_a_row_and_a_query(weighing, sqlite, driver):
    """The route, the request's checks, the answer, discovery and the client follow from a row."""
    fill(sqlite)
    engine = sqlite
    if driver == "aiosqlite":
        engine = create_async_engine(sqlite.url.set(drivername="sqlite+aiosqlite"))
    place = {"token": "1", "partition": 0, "cursor": FIRST}
    feed = TableFeed(orders, data="data", type="kind")
    with mounted(feed, engine) as url, httpx.Client() as session:
        client = WeighingClient(url, session)
        assert "weighing" in client.discover().extensions
        assert session.get(f"{url}/weight", params=place).json() == {"cursor": FIRST, "weight": 20}
        assert client.weigh(0, FIRST, 3) == Distance(FIRST, 30)
        for wrong in ({"factor": 0}, {"factor": "x"}, {"partition": 7}):
            assert kind(session.get(f"{url}/weight", params=place | wrong)) == "bad-request"
        assert session.get(f"{url}/weight", params=place | {"token": "2"}).status_code == 409


def test_new_extension_is_hidden_from_readers_without_its_right(weighing, sqlite):
    """A reader who may not see what an extension needs finds neither it nor its route's answer."""
    fill(sqlite)

    async def some_types(request):
        return Principal(name="reader", types=TypeFilter(frozenset({"placed"})))

    feed = TableFeed(orders, data="data", type="kind")
    with mounted(feed, sqlite, authorize=some_types) as url, client_of(url) as client:
        assert "weighing" not in client.discover().extensions
        answer = httpx.get(f"{url}/weight", params={"token": "1", "partition": 0, "cursor": FIRST})
        assert answer.status_code == 404

"""Serve two endpoints of a host, and a feed beside them."""

from sqlalchemy import create_engine, text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from benchmarks.actors.serving import serve
from benchmarks.actors.speaking import task
from benchmarks.events import feed_table
from zeroeventhub import TableFeed, feed_routes


def main() -> None:
    """Serve until the process is ended."""
    wanted = task()
    engine = create_engine(wanted["database"], pool_size=10)

    async def quick(_: Request) -> PlainTextResponse:
        return PlainTextResponse("well")

    def query(_: Request) -> PlainTextResponse:
        with engine.connect() as connection:
            return PlainTextResponse(str(connection.scalar(text("SELECT 1"))))

    feed = TableFeed(feed_table(wanted["table"], "text"), data={"text": "data"})
    routes = [Route("/async", quick), Route("/sync", query), *feed_routes("/feed", feed, engine)]
    serve(Starlette(routes=routes))


if __name__ == "__main__":
    main()

"""Publish tables with uvicorn, on a port that is said."""

import resource
import time

from sqlalchemy import Engine, Table, create_engine, insert
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from benchmarks.actors.serving import serve
from benchmarks.actors.speaking import task
from benchmarks.events import feed_table
from benchmarks.publishing import feed_of
from zeroeventhub import feed_routes


def writing(engine: Engine, table: Table) -> Route:
    """Return a route that writes an event, and answers with when it was committed."""

    def write(request: Request) -> PlainTextResponse:
        with engine.connect() as connection:
            data = {"id": request.path_params["number"]}
            connection.execute(insert(table).values(data=data))
            began = time.monotonic()
            connection.commit()
        return PlainTextResponse(str(began))

    return Route(f"/{table.name}/{{number:int}}", write, methods=["POST"])


def main() -> None:
    """Serve the feeds of a task until the process is ended."""
    wanted = task()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    engine = create_engine(wanted["database"])
    routes = []
    for name in wanted["tables"]:
        table = feed_table(name, wanted["form"])
        feed = feed_of(table, form=wanted["form"], archive=wanted["archive"], cache=wanted["cache"])
        routes += feed_routes(f"/{name}", feed, engine, name=name, arrow=wanted["arrow"])
        routes.append(writing(engine, table))
    serve(Starlette(routes=routes), loop=wanted["loop"], http=wanted["http"])


if __name__ == "__main__":
    main()

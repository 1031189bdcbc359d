"""A publisher in several processes, whose metrics are those of all of them.

pip install uvicorn gunicorn uvicorn-worker prometheus_client
export PROMETHEUS_MULTIPROC_DIR=$(mktemp -d)
uvicorn --workers 4 publisher:app
gunicorn --config gunicorn.conf.py publisher:app
"""

import os

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub import Capacity, TableFeed, feed_routes
from zeroeventhub.telemetry import PrometheusPublisher, horizon_collector

engine = create_engine(os.environ.get("SHOP", "sqlite:///shop.db"))
key = Column("id", Integer, primary_key=True)
orders = Table("orders", MetaData(), key, Column("data", JSON), sqlite_autoincrement=True)
capacity = Capacity(connections=2)
feed = TableFeed(orders, data="data").bind(engine, capacity)

# What all processes have counted, and what they have seen of the horizon.
scraped = CollectorRegistry()
MultiProcessCollector(scraped)
scraped.register(horizon_collector(feed, "orders"))


def metrics(_: Request) -> Response:
    """Answer a scrape, whichever process it meets; sync, because it asks the database."""
    return Response(generate_latest(scraped), media_type=CONTENT_TYPE_LATEST)


observer = PrometheusPublisher()
routes = feed_routes("/orders", feed, name="orders", observer=observer, capacity=capacity)
app = Starlette(routes=[*routes, Route("/metrics", metrics)])

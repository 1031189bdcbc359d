"""Read feeds over HTTP, and append to logs."""

from zeroeventhub.client.appender import Appender, AsyncAppender
from zeroeventhub.client.client import AsyncClient, Client
from zeroeventhub.client.connection_pool import ConnectionPool

__all__ = ["Appender", "AsyncAppender", "AsyncClient", "Client", "ConnectionPool"]

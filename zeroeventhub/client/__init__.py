"""Read feeds over HTTP."""

from zeroeventhub.client.client import AsyncClient, Client
from zeroeventhub.client.connection_pool import ConnectionPool

__all__ = ["AsyncClient", "Client", "ConnectionPool"]

"""Read feeds over HTTP, with the caller's own httpx client."""

from zeroeventhub.client.async_client import AsyncClient
from zeroeventhub.client.client import Client

__all__ = ["AsyncClient", "Client"]

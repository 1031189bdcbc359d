"""Read feeds over HTTP, with the caller's own httpx client."""

from zeroeventhub.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]

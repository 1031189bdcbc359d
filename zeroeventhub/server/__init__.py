"""Mount a feed in a web service: Starlette routes that speak FeedAPI v2 and ZeroEventHub v1."""

from zeroeventhub.errors import require

require("starlette", extra="server", user="Serving a feed")

from zeroeventhub.server.routes import feed_routes  # noqa: E402 - after it

__all__ = ["feed_routes"]

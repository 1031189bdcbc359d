"""Mount a feed in a web service: Starlette routes that speak FeedAPI v2 and ZeroEventHub v1."""

from zeroeventhub.errors import require

require("starlette", extra="server", user="Serving a feed")

# These need Starlette:
from zeroeventhub.server.app import Answered, Observer  # noqa: E402
from zeroeventhub.server.auth import (  # noqa: E402
    AppendRight,
    Authorize,
    FeedAuthorization,
    Principal,
    Quota,
    bearer_tokens,
    deny,
    everybody,
)
from zeroeventhub.server.routes import feed_routes  # noqa: E402
from zeroeventhub.server.sending import end_waits  # noqa: E402

__all__ = [
    "Answered",
    "AppendRight",
    "Authorize",
    "FeedAuthorization",
    "Observer",
    "Principal",
    "Quota",
    "bearer_tokens",
    "deny",
    "end_waits",
    "everybody",
    "feed_routes",
]

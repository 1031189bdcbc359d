"""A feed's horizon, for those who ask for it again and again."""

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Protocol

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry.reading import Reading

if TYPE_CHECKING:
    from zeroeventhub.publisher.horizon_watch import HorizonReport

__all__ = ["HorizonReading", "Watched"]


class Watched(Protocol):
    """Be a feed that knows its horizon, as a TableFeed does that is bound to a sync engine."""

    def horizon(self) -> "HorizonReport":
        """Tell how far the feed may be read, since when that is so, and who holds it back."""


class HorizonReading(Reading["HorizonReport | None"]):
    """Look up how old a feed's horizon is, and who holds it back.

    Args:
        feed: it knows.
        name: the name of the feed's routes.

    Raises:
        ConfigurationError: the feed has no horizon, or is bound to an async engine.
    """

    def __init__(self, feed: Watched, name: str) -> None:
        super().__init__(f"The horizon of feed {name!r}", None, {"feed": name})
        look = getattr(feed, "horizon", None)
        if look is None or iscoroutinefunction(look):
            raise ConfigurationError(
                "Metrics are collected by sync code: to show a feed's horizon, give a TableFeed "
                "that is bound to a sync engine, as by feed.bind(create_engine(…))."
            )
        self._feed = feed

    def _look(self) -> "HorizonReport | None":
        return self._feed.horizon()

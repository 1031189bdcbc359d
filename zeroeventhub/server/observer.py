"""What a feed tells about its work: the hooks that telemetry implements."""

from dataclasses import dataclass

__all__ = ["Answered", "Observer"]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Describe a request that has been answered.

    Attributes:
        feed: the name of the feed's routes.
        route: which of them: "discovery", "events", "cursor", "splits", "lag", "cursor-of-count",
            "segments", "key-history", "http-feed" or "server-sent-events".
        principal: who asked; empty where nobody is told apart, or nobody was let in.
        status: of the answer.
        events: how many events it has.
        size: how many bytes its body has; 0 for a stream.
        seconds: from the request until the answer was whole, with the time it waited at the head.
        waited: seconds of these that it waited at the head.
    """

    feed: str
    route: str
    principal: str
    status: int
    events: int
    size: int
    seconds: float
    waited: float


class Observer:
    """Watch a feed work; every method does nothing until a subclass says otherwise.

    The methods are called in the event loop. They must not raise, and must not take long.
    """

    def answered(self, answered: Answered) -> None:
        """See a request that has been answered."""

    def waiting(self, feed: str, requests: int) -> None:
        """See how many requests wait at the head now.

        Args:
            feed: the name of the feed's routes.
            requests: how many there are.
        """

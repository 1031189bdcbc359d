"""All checks by name, in the order in which they are made."""

from zeroeventhub.conformance import checks
from zeroeventhub.conformance.registry import Check, listed

__all__ = ["all_checks"]

# Those that look at everything that came are the last.
_ORDER = (
    *("discovery", "token", "reading", "v1", "parameters"),
    *("event_types", "caught_up", "stop", "wait", "cursor_of_time", "splits", "lag", "arrow"),
    *("cursor_of_count", "key_history", "segments"),
    *("caching", "lines", "problems"),
)


def all_checks() -> dict[str, Check]:
    """Return all checks by name: those of FeedAPI v2 first."""
    prefix = f"{checks.__name__}."

    def place(item: tuple[str, Check]) -> tuple[bool, int]:
        module = item[1].run.__module__.removeprefix(prefix)
        return item[1].v1, _ORDER.index(module)

    return dict(sorted(listed().items(), key=place))

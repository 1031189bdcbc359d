"""What looking at a feed's table has shown."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """Say one thing about a feed's table.

    Attributes:
        level: "ok"; "warning" for what makes the feed slow, or is likely a mistake; "error" for
            what keeps it from answering.
        subject: what it is about, in a word.
        sentence: what was found, and what to do about it.
        statement: the SQL that mends it, where there is one.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    statement: str | None = None

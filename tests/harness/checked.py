"""The conformance kit: check a feed, sort what was found, and have a client judged."""

from collections.abc import Iterable

import httpx

from zeroeventhub.conformance import Result, check_feed


def check(url: str, **options: object) -> dict[str, Result]:
    """Check a feed; return the results by name."""
    with httpx.Client(verify=False) as http:
        return {result.name: result for result in check_feed(url, http, **options)}


def outcomes(results: dict[str, Result], outcome: str) -> dict[str, str]:
    """Return the reasons of all results that ended in one way, by name."""
    return {name: result.reason for name, result in results.items() if result.outcome == outcome}


def verdict_on(feed: str, lines: Iterable[str]) -> dict[str, object]:
    """Post what a client applied, and how it ended; return the verdict of the scenario."""
    return httpx.post(f"{feed}/verdict", content="\n".join(lines).encode()).json()

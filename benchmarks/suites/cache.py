"""Pages that are asked for again: those that can never change."""

import time
from functools import partial

from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage
from benchmarks.suites.drain import copied

CEILING = "COPY of jsonb"
AGAIN = "full pages, asked for again"
UNCHANGED = "full pages, answered with 304"
PAGES = 20
"""With those that the publisher reads ahead of them, no more than its cache holds."""

SETTLED = 1.0
"""Seconds until the publisher has read ahead."""

WHY = "a request takes 0.2 ms in the server and the loop, whatever it answers, and a page 0.1 more"

TEXT = f"""\
{PAGES} full pages are asked for over and over, once the publisher has read ahead of them: as they
are, and with the tag that the reader has of them."""


def cache(stage: Stage) -> Result:
    """Ask for pages again."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    ways: dict[str, Way] = {
        CEILING: partial(copied, stage, table),
        "full pages, the first time": partial(stage.drained, table),
        AGAIN: partial(again, stage, table, tags=False),
        UNCHANGED: partial(again, stage, table, tags=True),
    }
    runs = rounds(ways, stage.count, stage.tell)
    of = {"of COPY": runs[CEILING]}
    rows = [Row(name, figures(found, of), ours=name != CEILING) for name, found in runs.items()]
    return Result(
        "cache",
        "Full pages again",
        TEXT,
        "of COPY",
        rows,
        [
            Goal(f"publisher, {AGAIN}", AGAIN, "of COPY", 6, why=WHY),
            Goal(f"publisher, {UNCHANGED}", UNCHANGED, "of COPY", 4, why=WHY),
        ],
    )


def again(stage: Stage, table: str, *, tags: bool) -> Run:
    """Ask for the same pages again and again."""
    with stage.draining(table) as (_, reader, meters):
        count = min(PAGES + 1, stage.events // PAGE)
        walked = reader.act({"cursor": "_first", "events": count * PAGE})
        # The start is no place that stays: who reads from it is never told that it knows the page.
        reader.act({"cursors": walked["cursors"][1:], "tags": tags, "size": PAGE})
        time.sleep(SETTLED)
        return reader.run(meters, {"again": 4 * stage.events})

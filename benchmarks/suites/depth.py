"""What a page costs as its table grows."""

from functools import partial

import httpx

from benchmarks.measuring import Run, Way, rounds, spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage, address
from zeroeventhub import FIRST, Client

PAGES = 100
SHORT_ROWS = PAGES * PAGE
SHORT = "short table, start"
PLACES = {"start": 0.0, "middle": 0.5, "end": 0.95}

TEXT = f"""\
{PAGES} pages of 1,000 in a row, from places in a table of {SHORT_ROWS:,} events and in a long
one, by a reader as that of `drain`; of each run, the median page. Events are small here, so that
the long table is long, not large."""


def depth(stage: Stage) -> Result:
    """Read pages of a short table and a long one."""
    short = stage.table("events_short", "jsonb", SHORT_ROWS, members="'id', n")
    long = stage.table("events_long", "jsonb", stage.rows, members="'id', n")
    ways: dict[str, Way] = {SHORT: partial(paged, stage, short, 0.0)}
    for place, share in PLACES.items():
        ways[f"long table, {place}"] = partial(paged, stage, long, share)
    runs = rounds(ways, stage.count, stage.tell)
    rows = []
    for name, found in runs.items():
        pages = [run.more["page"] for run in found]
        pairs = zip(pages, runs[SHORT], strict=True)
        ratios = [own / other.more["page"] for own, other in pairs]
        columns = {"ms a page": spread(pages), "of the short table": spread(ratios)}
        rows.append(Row(name, columns, ours=True))
    return Result(
        "depth",
        "As the table grows",
        TEXT,
        "of the short table",
        rows,
        [
            Goal(f"a page, {name}", name, "of the short table", 1.1, at_most=True)
            for name in ways
            if name != SHORT
        ],
        size=f"{stage.rows:,} events in the long table, {stage.count} rounds",
    )


def paged(stage: Stage, table: str, share: float) -> Run:
    """Read pages from a place that has so large a share of the events before it."""
    with stage.draining(table) as (publisher, reader, _):
        cursor = FIRST
        with httpx.Client(timeout=60) as http:
            if share:
                cursors = Client(address(publisher, table), http).splits(0, 100)
                cursor = cursors[int(share * (len(cursors) - 1))]
        reader.act({"cursor": "_last", "events": 1})
        run = reader.run({}, {"cursor": cursor, "events": PAGES * PAGE})
    return Run(run.events, run.seconds, more={"page": 1000 * run.seconds / PAGES})

"""What a publisher can give: its bytes drained by a reader that does nothing with them."""

from functools import partial

from benchmarks.acting import acting
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PEER_PATH, Stage, events_path

CEILING = "COPY of jsonb"
OURS = "publisher, jsonb"
AS_JSON = "publisher, JSON kept as text"
AS_TEXT = "publisher, text"
ENVELOPE = "publisher, jsonb in an envelope of CloudEvents"
PLAIN = "publisher, jsonb, uvicorn of pure Python"
PEER = "Python peer's publisher"

TEXT = """\
Pages of 1,000 events are asked for one behind the other over one connection, with a bare socket
that follows the cursor and decodes nothing. The ceiling is `COPY (SELECT data FROM …) TO STDOUT`
through psycopg, in no order and to nobody. Every round has new publishers, so that no page comes
from a cache. Three rows differ in the type of the column: a document that is kept as text is sent
as it is, and a text has to be quoted; in one more, each document is wrapped. uvicorn runs
with uvloop and httptools, and in one row without them. The peer's run has a tenth of the events."""


def drain(stage: Stage) -> Result:
    """Drain publishers."""
    tables = {form: stage.table(f"events_{form}", form, stage.events) for form in _WAYS.values()}
    ways: dict[str, Way] = {CEILING: partial(copied, stage, tables["jsonb"])}
    ways["COPY of JSON kept as text"] = partial(copied, stage, tables["json"])
    for name, form in _WAYS.items():
        ways[name] = partial(drained, stage, tables[form], form, plain=name == PLAIN)
    ways[PEER] = partial(drained_from_peer, stage, tables["jsonb"])
    runs = rounds(ways, stage.count, stage.tell)
    of = {"of COPY": runs[CEILING]}
    rows = [Row(name, figures(found, of), ours=name in _WAYS) for name, found in runs.items()]
    return Result(
        "drain",
        "The publisher, its bytes drained",
        TEXT,
        "of COPY",
        rows,
        [
            Goal("publisher, bytes drained", OURS, "of COPY", 0.85),
            Goal("publisher, bytes drained, JSON kept as text", AS_JSON, "of COPY", 0.90),
            Goal("publisher, events in an envelope", ENVELOPE, "of COPY", 0.70),
            Goal(
                "publisher, CPU seconds a million events", OURS, "CPU publisher", 0.8, at_most=True
            ),
        ],
    )


_WAYS = {OURS: "jsonb", AS_JSON: "json", AS_TEXT: "text", ENVELOPE: "envelope", PLAIN: "jsonb"}


def copied(stage: Stage, table: str) -> Run:
    """Copy a table to nobody."""
    with acting("copying", {"database": stage.plain_url, "table": table}) as copying:
        return copying.run({"database": stage.backends})


def drained(stage: Stage, table: str, form: str = "jsonb", *, plain: bool = False) -> Run:
    """Drain a feed from its first event to its last."""
    with (
        stage.publisher(table, form=form, plain=plain) as (publisher, meters),
        acting("drain", {"port": publisher.ready["port"], "path": events_path(table)}) as reader,
    ):
        reader.act({"cursor": "_last", "events": 1})
        run = reader.run(meters, {"cursor": "_first", "events": stage.events})
    assert run.events == stage.events  # noqa: S101 - else it would be no measure
    return run


def drained_from_peer(stage: Stage, table: str) -> Run:
    """Drain the Python peer's feed; a tenth of it, for it takes its time."""
    with (
        stage.peer(table) as (publisher, meters),
        acting("drain", {"port": publisher.ready["port"], "path": PEER_PATH}) as reader,
    ):
        reader.act({"cursor": "_first", "events": 1})
        return reader.run(meters, {"cursor": "_first", "events": stage.events // 10})

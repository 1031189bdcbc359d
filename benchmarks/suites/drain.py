"""What a publisher can give: its bytes drained by a reader that does nothing with them."""

from functools import partial

from benchmarks.acting import acting
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PEER_PATH, Stage

CEILING = "COPY of jsonb"
OURS = "publisher, jsonb"
AS_JSON = "publisher, JSON kept as text"
AS_TEXT = "publisher, text"
ENVELOPE = "publisher, jsonb in an envelope of CloudEvents"
PLAIN = "publisher, jsonb, uvicorn of pure Python"
SMALL = "publisher, jsonb of two members"
SMALL_CEILING = "COPY of jsonb of two members"
PEER = "Python peer's publisher"

REQUESTS = "each page is a request, which takes the event loop as long as the reading of its rows"
READING = "to read a page takes half of it, and to answer its request the other half"
WRAPPED = "PostgreSQL writes an envelope around each document, which it does not for COPY"

TEXT = """\
Pages of 1,000 events are requested one after the other over one connection, with a bare socket
that follows the cursor and decodes nothing. The ceiling is `COPY (SELECT data FROM …) TO STDOUT`
through psycopg, without an order, and drops the rows. Every round has new publishers, so that no
page comes from a cache. Documents of two members are compared with a COPY of the same. Three rows
differ in the type of the column: a document that is kept as text is sent as it is, and a text has
to be quoted; in one more, each document is wrapped. uvicorn runs with uvloop and httptools, and in
one row without them. The peer's run has a tenth of the events."""


def drain(stage: Stage) -> Result:
    """Drain publishers."""
    tables = {form: stage.table(f"events_{form}", form, stage.events) for form in _WAYS.values()}
    few = stage.table(
        "events_small", "jsonb", stage.events, members="'id', n, 'customer', n % 9973"
    )
    ways: dict[str, Way] = {CEILING: partial(copied, stage, tables["jsonb"])}
    ways["COPY of JSON kept as text"] = partial(copied, stage, tables["json"])
    for name, form in _WAYS.items():
        ways[name] = partial(stage.drained, tables[form], form=form, plain=name == PLAIN)
    ways[SMALL_CEILING] = partial(copied, stage, few)
    ways[SMALL] = partial(stage.drained, few)
    ways[PEER] = partial(drained_from_peer, stage, tables["jsonb"])
    runs = rounds(ways, stage.count, stage.tell)
    rows = []
    for name, found in runs.items():
        ceiling = SMALL_CEILING if name in {SMALL, SMALL_CEILING} else CEILING
        of = {"of COPY": runs[ceiling]}
        rows.append(Row(name, figures(found, of), ours=name in {*_WAYS, SMALL}))
    return Result(
        "drain",
        "The publisher, its bytes drained",
        TEXT,
        "of COPY",
        rows,
        [
            Goal("publisher, bytes drained", OURS, "of COPY", 0.85, why=REQUESTS),
            Goal("publisher, documents of two members", SMALL, "of COPY", 0.60, why=REQUESTS),
            Goal(
                "publisher, bytes drained, JSON kept as text",
                AS_JSON,
                "of COPY",
                0.90,
                why=REQUESTS,
            ),
            Goal("publisher, events in an envelope", ENVELOPE, "of COPY", 0.70, why=WRAPPED),
            Goal(
                "publisher, CPU seconds a million events",
                OURS,
                "CPU publisher",
                0.8,
                at_most=True,
                why=READING,
            ),
        ],
    )


_WAYS = {OURS: "jsonb", AS_JSON: "json", AS_TEXT: "text", ENVELOPE: "envelope", PLAIN: "jsonb"}


def copied(stage: Stage, table: str) -> Run:
    """Copy a table, and discard the bytes."""
    with acting("copying", {"database": stage.plain_url, "table": table}) as copying:
        return copying.run({"database": stage.backends})


def drained_from_peer(stage: Stage, table: str) -> Run:
    """Drain the Python peer's feed; a tenth of it, for it takes its time."""
    with (
        stage.peer(table) as (publisher, meters),
        acting("drain", {"port": publisher.ready["port"], "path": PEER_PATH}) as reader,
    ):
        reader.act({"cursor": "_first", "events": 1})
        return reader.run(meters, {"cursor": "_first", "events": stage.events // 10})

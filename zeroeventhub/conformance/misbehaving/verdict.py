"""Judge what a client applied against what a right one has applied."""

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

from zeroeventhub.conformance.misbehaving.scenario import Run, Scenario

__all__ = ["judge"]


def judge(scenario: Scenario, run: Run, body: bytes) -> dict[str, Any]:
    """Judge a client.

    Args:
        scenario: what the client went through.
        run: what it was told.
        body: what it applied, as NDJSON: {"partition":0,"data":…} for each event, in order, and
            {"error":"…"} at the end if it ended in an error.
    """
    reasons = list(run.faults)
    applied: dict[int, list[Any]] = defaultdict(list)
    sequence = []
    error = None
    try:
        for line in body.split(b"\n"):
            document = _read(line) if line.strip() else {}
            if "data" in document:
                partition = int(document.get("partition", 0))
                applied[partition].append(document["data"])
                sequence.append(partition)
            error = document.get("error", error)
    except (ValueError, TypeError, RecursionError, AttributeError) as problem:
        return {"passed": False, "reasons": [f"What was applied cannot be read: {problem}"]}
    for partition in sorted({*scenario.applied, *applied}):
        expected = [_read(data.encode()) for data in scenario.applied.get(partition, ())]
        got = applied[partition]
        short = error is not None and scenario.may_fail and expected[: len(got)] == got
        if got != expected and not short:
            reasons.append(
                f"Partition {partition}: {len(expected)} events should have been applied, "
                f"and {len(got)} were, or others."
            )
    if (error is not None) != (scenario.error is not None) and not scenario.may_fail:
        wanted = scenario.error or "none"
        reasons.append(f"The client should have ended with this error: {wanted}.")
    known = [partition for partition in sequence if partition in scenario.sequence]
    if known != sorted(known, key=scenario.sequence.index):
        reasons.append("The partitions were applied in another sequence.")
    return {"passed": not reasons, "reasons": reasons}


def _read(line: bytes) -> Any:
    return json.loads(line, parse_float=Decimal)

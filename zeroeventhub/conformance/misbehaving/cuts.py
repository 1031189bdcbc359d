"""Scenarios of an answer that breaks off, at every byte and in every framing."""

from typing import Literal

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    MIDDLE,
    Reply,
    Scenario,
    add,
    checkpoint,
    event,
    serve_feed,
)
from zeroeventhub.conformance.sections import PAGES

_BOTH = event(EVENTS[2]) + checkpoint(3) + event(EVENTS[3]) + checkpoint(4)


def _cut(framing: Literal["length", "chunked", "close"], offset: int) -> Scenario:
    name = {"length": "cut", "chunked": "cut-chunked", "close": "cut-clean"}[framing]

    def wrong(place: int, number: int) -> Reply | None:
        broken = Reply(_BOTH, framing=framing, cut=offset)
        return broken if place == MIDDLE and number == 1 else None

    return Scenario(
        f"{name}-{offset}",
        PAGES,
        f"The answer breaks off after {offset} of {len(_BOTH)} bytes.",
        "Applies up to the last checkpoint that came, and asks again from there.",
        serve_feed(wrong),
        {0: EVENTS},
    )


def _add_cuts(framing: Literal["length", "chunked", "close"], sentence: str) -> None:
    whole = _cut(framing, 0)
    add(
        Scenario(
            whole.name.rpartition("-")[0],
            PAGES,
            sentence,
            whole.right,
            whole.answer,
            whole.applied,
            sizes=len(_BOTH),
        ),
        lambda offset: _cut(framing, offset),
    )


_add_cuts("length", "The answer breaks off after so many bytes, short of its Content-Length.")
_add_cuts("chunked", "The answer breaks off after so many bytes, without its last chunk.")
_add_cuts("close", "The answer ends after so many bytes, and nothing tells that it was cut.")

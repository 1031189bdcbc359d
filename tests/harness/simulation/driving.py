"""Decisions, driven: each step is carried out, and what comes of it is handed back."""

from harness.simulation.calls import HandlerFailed
from zeroeventhub.errors import ZeroEventHubError


def drive(steps, carry_out):
    """Take the steps of decisions until they end; return what they return."""
    go_on, value = steps.send, None
    while True:
        try:
            step = go_on(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield from carry_out(step)
        except (ZeroEventHubError, HandlerFailed) as error:
            go_on, value = steps.throw, error
        else:
            go_on = steps.send

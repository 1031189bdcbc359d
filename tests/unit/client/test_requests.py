"""How often a client sends a request again; tests/unit/consumer/test_steps.py has the pauses."""

import pytest

from zeroeventhub.client.requests import send_until_answered
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import Unavailable


@pytest.mark.parametrize(("attempts", "sent"), [(3, 3), (0, 1), (None, 5)])
def test_request_is_sent_until_it_is_answered(attempts, sent):
    """A transient error is final at the last attempt; without a limit, the answer comes."""
    tries, pauses = [], []

    async def send():
        tries.append(1)
        if len(tries) < 5:
            raise Unavailable("Later.", retry_after=2)
        return "answer"

    async def pause(seconds):
        pauses.append(seconds)

    if attempts is None:
        assert blocking(send_until_answered(send, pause, attempts)) == "answer"
    else:
        with pytest.raises(Unavailable):
            blocking(send_until_answered(send, pause, attempts))
    assert (len(tries), pauses) == (sent, [2] * (sent - 1))

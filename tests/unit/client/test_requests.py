"""How long a client waits before it sends a request again, and how often it does."""

import pytest

from zeroeventhub.client.requests import LONGEST_BACKOFF, backoff, send_until_answered
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import Unavailable


def test_pauses_grow_and_last_as_long_as_the_feed_asks():
    """A pause is drawn from an interval that doubles, and is no shorter than Retry-After."""
    short, long = ([backoff(attempt, KeyError()) for _ in range(50)] for attempt in (1, 99))
    assert max(short) <= 0.2
    assert 0.2 < max(long) <= LONGEST_BACKOFF
    assert backoff(1, Unavailable("Later.", retry_after=7)) == 7
    assert backoff(1, Unavailable("Much later.", retry_after=3600)) == LONGEST_BACKOFF


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

"""What is fetched for a question stays until it is answered, and is bounded."""

import pytest

from zeroeventhub.at_hand import NotAtHand, keep
from zeroeventhub.errors import Unavailable


def test_parts_of_a_question_are_kept_up_to_a_number():
    """Each part that was fetched is held; a question that needs too many is refused for now."""
    held = []
    for number in range(10_000):
        keep(held, number)
    assert held == [*range(10_000)]
    with pytest.raises(Unavailable, match="too many parts") as raised:
        keep(held, NotAtHand(dict).load())
    assert raised.value.retry_after == 60

"""A feed whose partitions change, or that contradicts what it says of them."""

import pytest
from harness.deliveries import event, write_page

from zeroeventhub.errors import TokenChanged

CHANGED = TokenChanged("The partitions have changed.")


def test_feed_that_contradicts_its_discovery_is_given_up(shop):
    """Partitions that change before a page is read are waited for, and final in the end."""
    shop.feed.publish(event(1))
    shop.feed.trouble[0, "_first"] = [CHANGED] * 3
    with pytest.raises(TokenChanged):
        shop.run(write_page, attempts=3)
    assert (shop.landed(), shop.feed.trouble[0, "_first"]) == ([], [])


def test_page_between_two_changes_starts_their_count_again(shop):
    """Partitions that change often are no contradiction, as long as pages of them are read."""
    shop.feed.publish(*map(event, range(4)))
    shop.feed.trouble.update({(0, cursor): [CHANGED] for cursor in ("_first", "1", "2", "3")})
    shop.run(write_page, attempts=2, limit=1)
    assert shop.landed() == [0, 1, 2, 3]

"""A feed whose old events are in an archive, and no longer in its table: what answers from both.

A question about a feed goes to its table, through a connection of the host's. Nothing is fetched
from an archive meanwhile: where a part of it is needed that is not at hand, the question ends with
`NotAtHand`, the connection is given back, the part is fetched, and the question is asked again.
"""

from zeroeventhub.at_hand import NotAtHand
from zeroeventhub.publisher.archived.tier import Tier

__all__ = ["NotAtHand", "Tier"]

"""What goes wrong, as a seed says."""

from collections import Counter

NETWORK = (
    "request lost",
    "answer lost",
    "answer cut",
    "answer cut",
    "request doubled",
    "delay",
    "busy",
)
STORE = ("store away", "reply lost", "delay")
TRANSACTION = (
    *("connection lost", "commit in flight", "commit reply lost", "serialization", "delay"),
)


class Chaos:
    """Decide what goes wrong.

    Attributes:
        random: where chance comes from; everything in a world draws from it.
        rate: how likely each thing is to go wrong; 0 when the chaos is over.
        injected: how many faults of each kind there were.
    """

    def __init__(self, random, rate):
        self.random = random
        self.rate = rate
        self.injected = Counter()

    def fault(self, kinds):
        """Choose what goes wrong now; None if nothing does."""
        if self.random.random() >= self.rate:
            return None
        kind = self.random.choice(kinds)
        self.injected[kind] += 1
        return kind

    def strikes(self, kind, likelier=1):
        """Tell whether something goes wrong now, that is so many times likelier than others."""
        if self.random.random() >= self.rate * likelier:
            return False
        self.injected[kind] += 1
        return True

    def seconds(self, longest):
        """Choose how long something takes."""
        return self.random.random() * longest

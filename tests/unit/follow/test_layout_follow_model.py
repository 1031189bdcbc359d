"""A feed whose layout is changed by both methods, and a follower that must not lose or repeat."""

from functools import partial

from harness.laid_out_feed import KEYS, LaidOutFeed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zeroeventhub import FIRST
from zeroeventhub._follow import Advance, Deliver, Discover, Fetch, Follower, Inherit, Load, Place
from zeroeventhub.errors import Fenced, ZeroEventHubError
from zeroeventhub.protocol import CAUGHT_UP

CHOICES = st.integers(0, 1000)
MOST = 30
"""How many ids a layout may use up before it is left as it is."""


class FollowedLayout(RuleBasedStateMachine):
    """Let a layout change by both methods, between any two steps of a follower."""

    @initialize(partitions=st.integers(1, 3), extensions=st.sampled_from([(), (CAUGHT_UP,)]))
    def start(self, partitions, extensions):
        """Start a follower of a feed that is empty yet."""
        self.feed = LaidOutFeed(partitions, frozenset(extensions))
        self.cursors = {}
        self.delivered = {key: [] for key in KEYS}
        self.start_again()

    @rule()
    def start_again(self):
        """The consumer is killed, wherever it is, and starts again."""
        follower = Follower(
            None, forever=True, poll_interval=1, attempts=None, stopped=lambda: False
        )
        self.steps = follower.steps()
        self.go_on = partial(next, self.steps)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def publish(self, keys):
        """Events are published."""
        for key in keys:
            self.feed.append(key)

    @rule(choice=CHOICES, into=st.integers(1, 3))
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def split(self, choice, into):
        """A partition is closed, and others go on with its keys."""
        candidates = [share.id for share in self.feed.layout.partitions if not share.closed]
        parent = candidates[choice % len(candidates)]
        self.feed.layout = self.feed.layout.split(parent, into=into)

    @rule()
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def redistribute(self):
        """All partitions are replaced."""
        self.feed.layout = self.feed.layout.redistribute(by=2)

    @rule(choice=CHOICES)
    @precondition(lambda self: self.passed)
    def drop(self, choice):
        """A closed partition that the consumer has read to its end is shown no more."""
        self.feed.layout = self.feed.layout.drop(self.passed[choice % len(self.passed)])

    @property
    def passed(self):
        """The closed partitions that the consumer has read to their ends."""
        return [
            share.id
            for share in self.feed.layout.partitions
            if share.closed
            and (cursor := self.cursors.get(share.id, FIRST)) != FIRST
            and not self.feed.shown(share.id, int(cursor))
        ]

    @rule(count=st.integers(1, 12))
    def step(self, count):
        """The follower takes steps."""
        for _ in range(count):
            self.take_step()

    @invariant()
    def order_is_kept(self):
        """The events delivered of each key are the first of those published, in order."""
        for key, numbers in getattr(self, "delivered", {}).items():
            assert numbers == self.feed.published(key)[: len(numbers)]

    def teardown(self):
        """In the end every event has been delivered once."""
        if not hasattr(self, "feed"):
            return
        published = {key: self.feed.published(key) for key in KEYS}
        for _ in range(2_000):
            if self.delivered == published:
                return
            self.take_step()
        raise AssertionError(f"{published} became {self.delivered}.")

    def take_step(self):
        """Take one step, and hand its result or its error to the follower."""
        step = self.go_on()
        try:
            self.go_on = partial(self.steps.send, self.carry_out(step))
        except ZeroEventHubError as error:
            self.go_on = partial(self.steps.throw, error)

    def carry_out(self, step):
        """Be the feed, the store of cursors and the consumer."""
        match step:
            case Discover():
                self.known = self.feed.info()
                return self.known
            case Inherit():
                self.inherit(step.heirs, step.remaining)
            case Load():
                return Place(self.cursors.setdefault(step.partition, FIRST))
            case Fetch():
                return self.feed.page(self.known.token, step.partition, step.cursor)
            case Advance() if self.cursors.get(step.partition) != step.place.cursor:
                raise Fenced("Another process has moved the cursor.")
            case Advance():
                self.cursors[step.partition] = step.new
            case Deliver() if self.cursors.get(step.partition) == step.place.cursor:
                for event in step.page.events:
                    self.delivered[event.data["key"]].append(event.data["n"])
                self.cursors[step.partition] = step.page.cursor
        return None

    def inherit(self, heirs, remaining):
        """Start all heirs at once, and drop the cursors of their parents; see `CursorStore`."""
        known = dict(self.cursors)
        for heir, parents in heirs.items():
            if cursors := [known[parent] for parent in parents if parent in known]:
                self.cursors.setdefault(heir, cursors[0])
        for parent in {parent for parents in heirs.values() for parent in parents}:
            if parent not in remaining:
                self.cursors.pop(parent, None)


TestFollowedLayout = FollowedLayout.TestCase
TestFollowedLayout.settings = settings(max_examples=200, stateful_step_count=40)

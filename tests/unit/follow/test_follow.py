"""A feed whose layout changes at any moment, and a consumer that must not lose or repeat.

Every event has a key, and every key belongs to one open partition at a time. The feed may say where
its head is and wait there, and the consumer may be one that ends there; then the next one starts.
"""

from bisect import bisect
from functools import partial

from harness.laid_out_feed import KEYS, LaidOutFeed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zeroeventhub import FIRST, Page
from zeroeventhub._follow import (
    Advance,
    Deliver,
    Discover,
    Fetch,
    Follower,
    Inherit,
    Load,
    Pause,
    Place,
)
from zeroeventhub.errors import Fenced, TokenChanged, Unavailable, ZeroEventHubError
from zeroeventhub.layout import key_hash
from zeroeventhub.protocol import CAUGHT_UP, WAIT

CHOICES = st.integers(0, 1000)
NOTHING = -1
"""Stands in the place of a key at a position without an event."""

MOST = 12
"""How many ids a layout may use up before it is left as it is."""


class Feed(LaidOutFeed):
    """A feed with positions without events, whose token may change though its layout does not."""

    def __init__(self, partitions, extensions):
        super().__init__(partitions, extensions)
        self.rotation = 0
        self._logs = {}

    def skip(self):
        """Leave out a position, in all partitions."""
        self.rows.append((NOTHING, None))

    def shown(self, partition, after=0):
        """The positions of a partition behind one; what was found out is kept for each layout."""
        log, known = self._logs.get((self.layout.token, partition), ([], 0))
        for number, (key, written) in enumerate(self.rows[known:], known + 1):
            if key == NOTHING or self._is_in(partition, key, written):
                log.append((number, key))
        self._logs[self.layout.token, partition] = log, len(self.rows)
        return log[bisect(log, (after, len(KEYS))) :]

    def _is_in(self, partition, key, written):
        return any(
            share.id == partition and share.holds(key_hash(key))
            for share in self.layout.heirs(written)
        )

    def asked(self, partition, cursor):
        """Answer with two positions, without what stands for no event."""
        page = super().page(self.layout.token, partition, cursor)
        events = [event for event in page.events if event.data["key"] != NOTHING]
        return Page(events, page.cursor, caught_up=page.caught_up)

    @property
    def edition(self):
        """What a token names."""
        return self.layout.token, self.rotation


class FollowedFeed(RuleBasedStateMachine):
    """Let the feed change, requests fail and rivals read, between any two steps."""

    @initialize(
        partitions=st.integers(1, 3),
        extensions=st.sampled_from([(), (CAUGHT_UP,), (WAIT,), (CAUGHT_UP, WAIT)]),
        forever=st.booleans(),
    )
    def start(self, partitions, extensions, forever):
        """Start a consumer of a feed that is empty yet."""
        self.feed = Feed(partitions, frozenset(extensions))
        self.forever = forever
        self.cursors = {}
        self.failures = self.refusals = 0
        self.delivered = {key: [] for key in KEYS}
        self.start_again()

    @rule()
    def start_again(self):
        """The consumer is killed, wherever it is, and starts again."""
        follower = Follower(
            None, forever=self.forever, poll_interval=1, attempts=None, stopped=lambda: False
        )
        self.steps = follower.steps()
        self.go_on = partial(next, self.steps)
        self.expected = None

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def publish(self, keys):
        """Events are published."""
        for key in keys:
            self.feed.append(key)

    @rule()
    def skip_a_position(self):
        """Cursors move over a position without an event."""
        self.feed.skip()

    @rule()
    def rotate_token(self):
        """The feed has a new token for the same partitions."""
        self.feed.rotation += 1

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
        """All partitions are replaced by others that their cursors are valid in."""
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

    @rule(requests=st.integers(1, 3), pages=st.integers(0, 2))
    def fail(self, requests, pages):
        """The next requests fail, and the next pages that are delivered are not committed."""
        self.failures, self.refusals = requests, pages

    @rule(choice=CHOICES)
    @precondition(lambda self: self.readable)
    def let_a_rival_read(self, choice):
        """Another process of the same consumer applies a page of a partition."""
        partition = self.readable[choice % len(self.readable)]
        self.commit(partition, self.feed.asked(partition, self.cursors[partition]))

    @property
    def readable(self):
        """The partitions that have a cursor."""
        return sorted(set(self.cursors) & self.shown)

    @property
    def shown(self):
        """The partitions that the feed shows."""
        return {share.id for share in self.feed.layout.partitions}

    @rule()
    def let_a_rival_discover(self):
        """Another process of the same consumer has learned of the partitions first."""
        partitions = self.feed.info().partitions
        self.inherit({p.id: p.cursor_from for p in partitions if p.cursor_from}, self.shown)

    @rule(count=st.integers(1, 8))
    def step(self, count):
        """The consumer takes steps."""
        for _ in range(count):
            self.take_step()

    @rule()
    def read_to_the_head(self):
        """The consumer takes steps until it pauses or ends, which is where news can be missed."""
        for _ in range(1_000):
            if self.take_step() in {None, Pause}:
                return
        raise AssertionError("The consumer neither pauses nor ends.")

    @invariant()
    def order_is_kept(self):
        """The events delivered of each key are the first of those published, in order."""
        for key, numbers in getattr(self, "delivered", {}).items():
            assert numbers == self.feed.published(key)[: len(numbers)]

    @property
    def published(self):
        """By key, the events that the feed has published."""
        return {key: self.feed.published(key) for key in KEYS}

    def teardown(self):
        """In the end every event has been delivered once."""
        if not hasattr(self, "feed"):
            return
        self.failures = self.refusals = 0
        published = self.published
        for _ in range(2_000):
            if self.delivered == published:
                return
            self.take_step()
        raise AssertionError(f"{published} became {self.delivered}.")

    def take_step(self):
        """Take one step, and hand its result or its error to the consumer.

        Returns:
            the step's kind; None at the end of a run.
        """
        if self.expected is None:
            self.expected = self.published
        try:
            step = self.go_on()
        except StopIteration:
            self.end_run()
            return None
        try:
            self.go_on = partial(self.steps.send, self.carry_out(step))
        except ZeroEventHubError as error:
            self.go_on = partial(self.steps.throw, error)
        return type(step)

    def end_run(self):
        """See that a run which does not follow ended behind all that was there before it."""
        assert not self.forever
        for key, numbers in self.expected.items():
            assert self.delivered[key][: len(numbers)] == numbers
        self.start_again()

    def carry_out(self, step):
        """Be the feed, the store of cursors and the handler."""
        match step:
            case Discover() | Fetch() if self.failures:
                self.failures -= 1
                raise Unavailable("The feed is busy.")
            case Discover():
                self.known, self.info = self.feed.edition, self.feed.info()
                return self.info
            case Inherit():
                self.inherit(step.heirs, step.remaining)
            case Load():
                return Place(self.cursors.setdefault(step.partition, FIRST))
            case Fetch():
                return self.answer(step)
            case Deliver() if self.refusals:
                self.refusals -= 1
            case Deliver() if self.cursors.get(step.partition) == step.place.cursor:
                self.commit(step.partition, step.page)
            case Advance() if self.cursors.get(step.partition) != step.place.cursor:
                raise Fenced("Another process has moved the cursor.")
            case Advance():
                self.cursors[step.partition] = step.new
        return None

    def answer(self, step):
        """Answer a request; it waits only for the last partition that is open, if the feed can."""
        if step.wait:
            assert self.forever
            assert WAIT in self.info.extensions
            assert [p.id for p in self.info.partitions if not p.closed] == [step.partition]
        if self.known != self.feed.edition:
            raise TokenChanged("The partitions have changed.")
        return self.feed.asked(step.partition, step.cursor)

    def inherit(self, heirs, remaining):
        """Start all heirs at once, and drop the cursors of their parents."""
        known = dict(self.cursors)
        for heir, parents in heirs.items():
            if cursors := [known[parent] for parent in parents if parent in known]:
                self.cursors.setdefault(heir, cursors[0])
        parents = {parent for parents in heirs.values() for parent in parents}
        for parent in parents - set(remaining):
            self.cursors.pop(parent, None)

    def commit(self, partition, page):
        """Apply the events of a page and move the cursor behind it."""
        for event in page.events:
            self.delivered[event.data["key"]].append(event.data["n"])
        self.cursors[partition] = page.cursor


TestFollowedFeed = FollowedFeed.TestCase
TestFollowedFeed.settings = settings(max_examples=120, stateful_step_count=30)

"""A feed whose layout changes at any moment, and a follower that must not lose or repeat.

Every event has a key, and every key belongs to one open partition at a time. Positions rise
over the whole feed, so that a cursor is valid in every partition that inherits it. A feed may say
where its head is and wait there, and a follower may be one that ends there; then the next one
starts.
"""

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zeroeventhub import FIRST, Event, FeedInfo, Page, Partition
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
from zeroeventhub.protocol import CAUGHT_UP, WAIT

KEYS = range(6)
NOTHING = -1
"""Stands in the place of a key at a position without an event."""


class Feed:
    """Be a feed whose partitions are split, each into those that share its keys."""

    def __init__(self, partitions, extensions):
        self.extensions = extensions
        self.token = 0
        self.highest = 0
        self.layout = {number: Partition(number) for number in range(partitions)}
        self.logs = {number: [] for number in self.layout}
        self.owners = {key: key % partitions for key in KEYS}
        self.published = {key: [] for key in KEYS}

    def append(self, key, partition):
        """Add an event of a key, or NOTHING, to a partition."""
        self.highest += 1
        self.logs[partition].append((self.highest, key))
        if key != NOTHING:
            self.published[key].append(self.highest)

    def open_partitions(self):
        """The partitions that may still be written to."""
        return [partition for partition in self.layout.values() if not partition.closed]

    def close_and_split(self, parent):
        """Close a partition; its keys go on in children that start after it."""
        self.layout[parent.id] = Partition(
            parent.id, closed=True, starts_after=parent.starts_after, cursor_from=parent.cursor_from
        )
        for child in self._divide(parent):
            self.layout[child] = Partition(child, starts_after=parent.id)

    def replace(self, parent):
        """Put partitions in the place of one, with its history and its cursors."""
        del self.layout[parent.id]
        for child in self._divide(parent):
            self.layout[child] = Partition(
                child,
                starts_after=parent.starts_after,
                cursor_from=(parent.id, *parent.cursor_from),
            )
            self.logs[child] = [
                (position, key)
                for position, key in self.logs[parent.id]
                if key != NOTHING and self.owners[key] == child
            ]

    def _divide(self, parent):
        """Give the keys of a partition to new ones; return these."""
        keys = [key for key, owner in self.owners.items() if owner == parent.id]
        children = []
        for half in filter(None, [keys[::2], keys[1::2]]):
            child = len(self.logs)
            self.logs[child] = []
            self.owners |= dict.fromkeys(half, child)
            children.append(child)
        self.token += 1
        return children

    def info(self):
        """Describe the feed; the partition that came last comes first."""
        return FeedInfo(
            tuple(reversed(self.layout.values())), str(self.token), extensions=self.extensions
        )

    def page(self, token, partition, cursor):
        """Read two positions behind a cursor, with the token of some discovery."""
        if token != str(self.token):
            raise TokenChanged("The partitions have changed.")
        after = 0 if cursor == FIRST else int(cursor)
        ahead = [entry for entry in self.logs[partition] if entry[0] > after]
        found = ahead[:2]
        events = [Event.of({"key": key, "n": n}) for n, key in found if key != NOTHING]
        caught_up = CAUGHT_UP in self.extensions and found == ahead
        return Page(events, str(found[-1][0] if found else after), caught_up=caught_up)


class FollowedFeed(RuleBasedStateMachine):
    """Let the feed change, requests fail and rivals read, between any two steps."""

    @initialize(
        partitions=st.integers(1, 3),
        extensions=st.sampled_from([(), (CAUGHT_UP,), (WAIT,), (CAUGHT_UP, WAIT)]),
        forever=st.booleans(),
    )
    def start(self, partitions, extensions, forever):
        """Start a follower of a feed that is empty yet."""
        self.feed = Feed(partitions, frozenset(extensions))
        self.forever = forever
        self.known = None
        self.cursors = {}
        self.failures = 0
        self.refusals = 0
        self.delivered = {key: [] for key in KEYS}
        self.start_run()

    def start_run(self):
        """Start a follower where the last one ended."""
        follower = Follower(
            None, forever=self.forever, poll_interval=1, attempts=None, stopped=lambda: False
        )
        self.steps = follower.steps()
        self.go_on = partial(next, self.steps)
        self.expected = None

    @rule(key=st.sampled_from(KEYS))
    def append(self, key):
        """An event of a key is published."""
        self.feed.append(key, self.feed.owners[key])

    @rule(choice=st.integers(0, 10))
    def skip_a_position(self, choice):
        """A partition's cursor moves over a position without an event."""
        partitions = self.feed.open_partitions()
        self.feed.append(NOTHING, partitions[choice % len(partitions)].id)

    @rule()
    def rotate_token(self):
        """The feed has a new token for the same partitions."""
        self.feed.token += 1

    @rule(choice=st.integers(0, 10))
    @precondition(lambda self: len(self.feed.logs) < 12)
    def close_and_split(self, choice):
        """A partition is closed, and children start after it."""
        partitions = self.feed.open_partitions()
        self.feed.close_and_split(partitions[choice % len(partitions)])

    @rule(choice=st.integers(0, 10))
    @precondition(lambda self: len(self.feed.logs) < 12)
    def replace(self, choice):
        """A partition is replaced by others that its cursors are valid in."""
        partitions = self.feed.open_partitions()
        self.feed.replace(partitions[choice % len(partitions)])

    @rule(count=st.integers(1, 3))
    def fail(self, count):
        """The next requests fail."""
        self.failures = count

    @rule(count=st.integers(1, 2))
    def refuse(self, count):
        """The next pages that are delivered are not committed."""
        self.refusals = count

    @rule(choice=st.integers(0, 10))
    @precondition(lambda self: set(self.cursors) & set(self.feed.layout))
    def let_a_rival_read(self, choice):
        """Another process of the same consumer applies a page of a partition."""
        partitions = sorted(set(self.cursors) & set(self.feed.layout))
        partition = partitions[choice % len(partitions)]
        cursor = self.cursors[partition]
        self.commit(partition, cursor, self.feed.page(str(self.feed.token), partition, cursor))

    @rule()
    def let_a_rival_discover(self):
        """Another process of the same consumer has learned of the partitions first."""
        heirs = {p.id: p.cursor_from for p in self.feed.layout.values() if p.cursor_from}
        self.inherit(heirs, self.feed.layout)

    @rule(count=st.integers(1, 8))
    def step(self, count):
        """The follower takes steps."""
        for _ in range(count):
            self.take_step()

    @rule()
    def read_to_the_head(self):
        """The follower takes steps until it pauses or ends, which is where news can be missed."""
        for _ in range(300):
            if self.take_step() in {None, Pause}:
                return
        raise AssertionError("The follower neither pauses nor ends.")

    @invariant()
    def order_is_kept(self):
        """The events delivered of each key are the first of those published, in order."""
        for key, numbers in getattr(self, "delivered", {}).items():
            assert numbers == self.feed.published[key][: len(numbers)]

    def teardown(self):
        """In the end every event has been delivered once."""
        if not hasattr(self, "feed"):
            return
        self.failures = self.refusals = 0
        for _ in range(2_000):
            if self.delivered == self.feed.published:
                return
            self.take_step()
        raise AssertionError(f"{self.feed.published} became {self.delivered}.")

    def take_step(self):
        """Take one step, and hand its result or its error to the follower.

        Returns:
            the step's kind; None at the end of a run.
        """
        if self.expected is None:
            self.expected = {key: list(numbers) for key, numbers in self.feed.published.items()}
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
        self.start_run()

    def carry_out(self, step):
        """Be the feed, the store of cursors and the consumer."""
        match step:
            case Discover() | Fetch() if self.failures:
                self.failures -= 1
                raise Unavailable("The feed is busy.")
            case Discover():
                self.known = self.feed.info()
                return self.known
            case Inherit():
                self.inherit(step.heirs, step.remaining)
            case Load():
                return Place(self.cursors.setdefault(step.partition, FIRST))
            case Fetch():
                self.see_who_waits(step)
                return self.feed.page(self.known.token, step.partition, step.cursor)
            case Deliver() if self.refusals:
                self.refusals -= 1
            case Deliver():
                self.deliver(step)
            case Advance() if self.cursors.get(step.partition) != step.place.cursor:
                raise Fenced("Another process has moved the cursor.")
            case Advance():
                self.cursors[step.partition] = step.new
        return None

    def see_who_waits(self, step):
        """The feed is asked to wait only for the last partition that is open, and if it can."""
        if step.wait:
            assert self.forever
            assert WAIT in self.known.extensions
            assert [p.id for p in self.known.partitions if not p.closed] == [step.partition]

    def inherit(self, heirs, remaining):
        """Start all heirs at once, and drop the cursors of their parents."""
        known = dict(self.cursors)
        for heir, parents in heirs.items():
            cursors = [known[parent] for parent in parents if parent in known]
            if cursors:
                self.cursors.setdefault(heir, cursors[0])
        parents = {parent for parents in heirs.values() for parent in parents}
        for parent in parents - set(remaining):
            self.cursors.pop(parent, None)

    def deliver(self, step):
        """Apply a page; a consumer drops the page that another process has applied."""
        if self.cursors.get(step.partition) == step.place.cursor:
            self.commit(step.partition, step.place.cursor, step.page)

    def commit(self, partition, cursor, page):
        """Apply the events of a page and move the cursor from where it stands."""
        assert self.cursors[partition] == cursor
        for event in page.events:
            self.delivered[event.data["key"]].append(event.data["n"])
        self.cursors[partition] = page.cursor


TestFollowedFeed = FollowedFeed.TestCase
TestFollowedFeed.settings = settings(max_examples=300, stateful_step_count=50)

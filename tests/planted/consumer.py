"""Mistakes in the consumer, and the tests that notice each."""

from harness.planted import Planted

_FOLLOWER = "tests/unit/consumer/test_follower.py"
_ASSIGNMENT = "tests/unit/consumer/test_assignment.py"
_SIMULATION = "tests/unit/consumer/test_coordinator.py"
_CONSUMER = "tests/integration/consumer"
_APPLY = f"{_CONSUMER}/test_apply.py"
_LANES = f"{_CONSUMER}/test_lanes.py"
_RUNNER = f"{_CONSUMER}/test_runner.py"
_CONCURRENCY = f"{_CONSUMER}/test_concurrency.py"
_SQLITE = ("-k", "not postgresql and not mariadb")

_COMMIT = "connection.connection.commit()"
"""Ends the transaction that the page is applied in."""

PLANTED = (
    Planted(
        "a child starts only when its parent has been read to the end",
        "consumer/assignment.py",
        " and partition.starts_after not in waited_for",
        "",
        (_ASSIGNMENT,),
    ),
    Planted(
        "an unknown outcome: the cursor is read again before anything is tried again",
        "consumer/follower.py",
        "            except (Fenced, StoreUnavailable) as error:\n"
        "                yield from self._find_out(error)\n",
        "            except StoreUnavailable:\n"
        "                continue\n"
        "            except Fenced as error:\n"
        "                yield from self._find_out(error)\n",
        (_FOLLOWER,),
    ),
    Planted(
        "a handler's failure is no failure of the store",
        "consumer/follower.py",
        "            except (Fenced, StoreUnavailable) as error:",
        "            except (Fenced, TransientError) as error:",
        (_FOLLOWER,),
    ),
    Planted(
        "a lease is renewed three times as often as it runs out",
        "consumer/coordinator.py",
        " / 3)\n            self._record(outcomes)\n            if self._errors",
        ")\n            self._record(outcomes)\n            if self._errors",
        (_SIMULATION,),
    ),
    Planted(
        "a partition that halted stays with the process in which it did",
        "consumer/coordinator.py",
        " - (self._halted.keys() & set(self._wanted))",
        "",
        (_SIMULATION,),
    ),
    Planted(
        "events are applied in the transaction that moves the cursor",
        "consumer/apply.py",
        "        fence(connection)\n",
        f"        fence(connection)\n        {_COMMIT}\n",
        (_APPLY, *_SQLITE),
    ),
    Planted(
        "a dead letter is written in the transaction that moves the cursor",
        "consumer/apply.py",
        "            tally.letters.append((event, error))\n",
        f"            {_COMMIT}\n            tally.letters.append((event, error))\n",
        (_APPLY, "-k", "key_is_held_back_on and sqlite"),
    ),
    Planted(
        "what a failed event wrote is undone",
        "consumer/handler.py",
        "                self._end(undo, keeps=False)",
        "                self._end(keep, keeps=False)",
        (_APPLY, "-k", "set_aside and sqlite"),
    ),
    Planted(
        "later events of a key wait behind its dead letter",
        "consumer/apply.py",
        "                    held_keys.add(key)",
        "                    held_keys.discard(key)",
        (_APPLY, "-k", "later_events and sqlite"),
    ),
    Planted(
        "later pages wait behind a dead letter too",
        "consumer/apply.py",
        "            held_keys |= self._letters",
        "            self._letters",
        (_APPLY, "-k", "later_events and sqlite"),
    ),
    Planted(
        "a lane goes on where it was",
        "consumer/lanes.py",
        "        self._done = {} if progress is None else progress.done\n",
        "        self._done = {}\n",
        (_LANES, "-k", "lane_that_fails and sqlite"),
    ),
    Planted(
        "no more lanes write at a time than the consumer has",
        "consumer/concurrency.py",
        "ThreadPoolExecutor(most,",
        "ThreadPoolExecutor(len(items),",
        (_LANES, "-k", "no_more_lanes"),
    ),
    Planted(
        "the renewal of a lease goes before all others who write",
        "consumer/concurrency.py",
        "            if first:",
        "            if not first:",
        (_CONCURRENCY, "-k", "renewed"),
    ),
    Planted(
        "what was fetched ahead is for one cursor",
        "consumer/concurrency.py",
        "            if known == step:",
        "            if known is not None:",
        (_CONCURRENCY, "-k", "ahead and not async"),
    ),
    Planted(
        "a program that is to end leaves a request at the head",
        "consumer/concurrency.py",
        "            self._answers.put(Stopped())\n",
        "",
        (f"{_CONSUMER}/test_consumer.py", "-k", "feed_at_its_head"),
    ),
    Planted(
        "a loop reads ahead of a feed that takes its time",
        "consumer/concurrency.py",
        "        self.waits = time.monotonic() - time.thread_time() - started",
        "        self.waits = 0.0",
        (f"{_CONSUMER}/test_consumer.py", "-k", "reads_ahead"),
    ),
    Planted(
        "a run at the head sees that an operator has put the cursor elsewhere",
        "consumer/runner.py",
        "            epochs=runner.epochs,",
        "            epochs={},",
        (_RUNNER, "-k", "put_back"),
    ),
    Planted(
        "a partition has no more dead letters than it may",
        "consumer/apply.py",
        "            if len(tally.letters) >= room:",
        "            if len(tally.letters) >= room + 999:",
        (_APPLY, "-k", "too_many"),
    ),
    Planted(
        "a handler's words are not in the log",
        "consumer/follower.py",
        'f"{type(error).__name__}.{reason}"',
        'f"{error!r}.{reason}"',
        (f"{_CONSUMER}/test_observer.py", "-k", "words"),
    ),
)

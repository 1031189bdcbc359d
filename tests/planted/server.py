"""Mistakes in the server, and the tests that must notice them."""

from harness.planted import Planted

_TESTS = "tests/integration/server"


def _tests(name: str) -> str:
    return f"{_TESTS}/test_{name}.py"


PLANTED = (
    Planted(
        "a hidden partition is not there",
        "server/view.py",
        "for partition in info.partitions if may_read(partition.id)",
        "for partition in info.partitions",
        (_tests("view"), "-k", "discovery or hidden"),
    ),
    Planted(
        "a reader's types are in the query",
        "server/principal.py",
        "        return own if types is None else own.joined(types)",
        "        return own if types is None else types",
        ("tests/unit/server/test_principal.py",),
    ),
    Planted(
        "only a Principal lets in",
        "server/access.py",
        "        if not isinstance(found, Principal):",
        "        if found is None:",
        (_tests("access"),),
    ),
    Planted(
        "an application denies by default",
        "server/authorize.py",
        "authorize: Authorize = deny) -> None",
        "authorize: Authorize = everybody) -> None",
        (_tests("authorize"),),
    ),
    Planted(
        "tokens are compared in constant time",
        "server/tokens.py",
        "            if compare_digest(known, digest):",
        "            if known == digest:",
        (_tests("tokens"),),
    ),
    Planted(
        "a stream ends with the rights of its reader",
        "server/server_sent_events.py",
        "        return principal != self._principal",
        "        return False",
        (_tests("server_sent_events"), "-k", "rights"),
    ),
    Planted(
        "a place of a reader's quota is given back once",
        "server/quotas.py",
        "        self._add(-1)",
        "        self._add(-2)",
        (_tests("quotas"),),
    ),
    Planted(
        "a reader with requests under way is not forgotten",
        "server/quotas.py",
        "        return not self.in_flight and self.due <= now",
        "        return self.due <= now",
        (_tests("quotas"), "-k", "forgotten"),
    ),
    Planted(
        "what is kept is of the history that there is",
        "server/read_ahead.py",
        "                self._pages.clear()\n                return False",
        "                return True",
        (_tests("read_ahead"),),
    ),
    Planted(
        "a page under way is read once",
        "server/read_ahead.py",
        "            and question not in self._under_way\n",
        "",
        (_tests("read_ahead"), "-k", "under_way"),
    ),
    Planted(
        "a page that is kept again takes its room once",
        "server/kept_pages.py",
        "        self._drop(question)\n        self._pages[question] =",
        "        self._pages[question] =",
        (_tests("kept_pages"), "-k", "takes_its_room"),
    ),
    Planted(
        "pages that are forgotten leave their room",
        "server/kept_pages.py",
        "        while self._pages:\n            self._drop(next(iter(self._pages)))",
        "        self._pages.clear()",
        (_tests("kept_pages"), "-k", "another_history"),
    ),
    Planted(
        "a commit through the feed's own engine is heard of",
        "server/news.py",
        "            hurry()\n",
        "            pass\n",
        (_tests("news"), "-k", "commit and sqlite"),
    ),
    Planted(
        "a page that was begun is not shared with those who ask later",
        "server/source.py",
        "            begun()\n            is_full",
        "            is_full",
        (_tests("gathering"),),
    ),
    Planted(
        "a failed request gives its connection back",
        "server/line.py",
        "        try:\n            yield\n        finally:\n            self.take(-size)",
        "        yield\n        self.take(-size)",
        (_tests("line"), "-k", "failed or gives_up"),
    ),
    Planted(
        "a waiter that leaves is counted no longer",
        "server/waiting.py",
        "            self._count -= 1\n",
        "            self._count -= is_own\n",
        (_tests("waiting"), "-k", "leaves or go_wait"),
    ),
    Planted(
        "a failure's text is the publisher's alone",
        "server/problem.py",
        "    if status == FAILED:\n        detail",
        "    if status > FAILED:\n        detail",
        (_tests("problem"),),
    ),
    Planted(
        "waits are over when the server ends",
        "server/shutdown.py",
        "    PROCESS.ending = True",
        "    PROCESS.ending = False",
        (_tests("shutdown"), "-k", "other_servers"),
    ),
)

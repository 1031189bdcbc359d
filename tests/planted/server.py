"""Mistakes in the server: in its answers, in who may read what, and in what is kept for whom."""

from harness.planted import Planted


def _tests(name: str) -> str:
    return f"tests/integration/server/test_{name}.py"


PLANTED = (
    Planted(
        "a hidden partition is not there",
        "server/view.py",
        "for partition in info.partitions if may_read(partition.id)",
        "for partition in info.partitions",
        (_tests("view"), "-k", "alone or hidden"),
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
        (_tests("pages"),),
    ),
    Planted(
        "a page that was begun is not shared with those who ask later",
        "server/source.py",
        "            begun()\n            is_full",
        "            is_full",
        (_tests("load"), "-k", "one_read_answers"),
    ),
    Planted(
        "a failed request gives its connection back",
        "server/line.py",
        "        try:\n            yield\n        finally:\n            self.take(-size)",
        "        yield\n        self.take(-size)",
        (_tests("load"), "-k", "failed"),
    ),
    Planted(
        "a waiter that leaves is counted no longer",
        "server/waiting.py",
        "            self._count -= 1\n",
        "            self._count -= is_own\n",
        (_tests("long_poll"), "-k", "leaves or go_wait"),
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
    Planted(
        "a feed without types shows nothing to a principal with types",
        "server/view.py",
        "            if EVENT_TYPES not in extensions:",
        "            if not extensions:",
        (_tests("view"),),
    ),
    Planted(
        "extensions that tell of all types are closed to a principal with types",
        "server/view.py",
        "            extensions -= _TELLING\n",
        "",
        (_tests("view"),),
    ),
    Planted(
        "answers of an authorized feed vary by Authorization",
        "server/access.py",
        """            MutableHeaders(raw=response.raw_headers).add_vary_header("Authorization")""",
        "            pass",
        (_tests("access"), _tests("authorize")),
    ),
    Planted(
        "a principal has a rate",
        "server/quotas.py",
        "        if early > interval * 1e-6:",
        "        if early > interval * 1e6:",
        (_tests("quotas"),),
    ),
    Planted(
        "a principal with types gets no page that was kept for others",
        "server/view.py",
        "        if self._principal.is_restricted_to_types or cursor == LAST:",
        "        if cursor == LAST:",
        (_tests("pages"), _tests("view")),
    ),
    Planted(
        "a page that may change is not kept",
        "server/read_ahead.py",
        " for question, page in found if page.tag is not None]",
        " for question, page in found]",
        (_tests("pages"), _tests("view")),
    ),
    Planted(
        "reading ahead leaves connections to waiting readers",
        "server/source.py",
        "        return self._line.taken * 2 < self._connections and",
        "        return",
        (_tests("pages"),),
    ),
    Planted(
        "a wait that failed is not handed to the next reader",
        "server/waiting.py",
        "            self._gatherings.pop((question, edition), None)",
        "            pass",
        (_tests("long_poll"), "-k", "failure_is_met"),
    ),
    Planted(
        "an error that is raised for all does not grow with them",
        "server/gathering.py",
        "raise self._outcome.error.with_traceback(self._outcome.traceback)",
        "raise self._outcome.error",
        (_tests("long_poll"), "-k", "failure_is_met"),
    ),
    Planted(
        "a carriage return outside of strings stays at the publisher",
        "lines.py",
        '.replace(b"\\n", b" ").replace(b"\\r", b" ")',
        '.replace(b"\\n", b" ")',
        (_tests("renditions"), "-k", "line_ends and sqlite"),
    ),
)

"""`zeroeventhub conformance`: exit codes, output, files for CI."""

import json
from xml.etree import ElementTree as ET

import pytest
from harness.command_line import invoke
from harness.mutant_publishers import MUTANTS, publisher
from harness.web import answering, serving


def run(*arguments):
    """Run the command."""
    return invoke("conformance", *arguments)


@pytest.fixture
def good_url():
    """The URL of a feed that conforms."""
    with serving(publisher()) as url:
        yield f"{url}/feed"


@pytest.fixture
def bad_url():
    """The URL of a feed that sends NaN."""
    with serving(publisher(MUTANTS["sends NaN"])) as url:
        yield f"{url}/feed"


QUICK = ["--only", "lines-strict", "--only", "page-sizes", "--only", "closed"]


def test_conforming_feed_ends_with_0(good_url):
    """A line for each check and a summary; nothing failed."""
    shown = run(good_url, *QUICK)
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    assert shown.stdout.splitlines() == [
        "pass  page-sizes",
        "skip  closed  The feed has no closed partition.",
        "pass  lines-strict",
        "2 passed, 0 with a note, 0 failed, 1 skipped",
    ]


def test_failed_check_shows_what_was_sent_and_what_came(bad_url):
    """A check that failed says what it found, what is asked for, the request and the answer."""
    shown = run(bad_url, *QUICK)
    assert shown.exit_code == 1
    failed = shown.stdout.partition("fail  ")[2].splitlines()
    assert failed[0] == "lines-strict"
    assert [line[:12].strip() for line in failed[1:5]] == ["found", "asked", "sent", "came"]
    assert "GET /feed/events?token=t1&partition=0&cursor=_first" in failed[3]
    assert "200, application/x-ndjson, " in failed[4]
    assert "\x1b" not in shown.stdout


def test_results_come_as_json(bad_url):
    """--json prints one document, and the exit code stays."""
    shown = run(bad_url, *QUICK, "--json")
    document = json.loads(shown.stdout)
    assert shown.exit_code == 1
    assert (document["pass"], document["fail"], document["skip"]) == (1, 1, 1)
    failed = next(entry for entry in document["checks"] if entry["outcome"] == "fail")
    assert failed["answer"]["status"] == 200
    assert failed["request"]["method"] == "GET"


def test_results_are_written_for_ci(bad_url, tmp_path):
    """--junit writes a test suite with a test case a check."""
    file = tmp_path / "results.xml"
    assert run(bad_url, *QUICK, "--junit", file).exit_code == 1
    suite = ET.parse(file).getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [case.get("name") for case in suite.iter("testcase") if len(case)] == [
        "closed",
        "lines-strict",
    ]


def test_checks_are_listed_without_a_feed():
    """--list prints every check with its section and sentence."""
    shown = run("--list")
    assert shown.exit_code == 0
    assert len(shown.stdout.splitlines()) > 100
    assert shown.stdout.startswith("discovery-document")


def test_header_is_sent_and_not_shown(good_url):
    """What is given by -H and what stands in the URL's own query are not printed."""
    url = good_url.replace("http://", "http://user:canary@") + "?key=canary"
    shown = run(url, *QUICK, "--json", "-H", "Authorization: canary")
    assert shown.exit_code == 0, shown.stderr
    assert "canary" not in shown.stdout + shown.stderr


def answer(status):
    """Answer everything with a status."""
    return lambda _: (
        f"HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "-H"), (404, "no feed"), (302, "moved"), (400, "how many partitions")],
)
def test_nothing_to_check_ends_with_2(status, words):
    """Where there is no feed to check, a sentence says what to do."""
    with answering(answer(status)) as url:
        shown = run(url)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert words in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "URL"),
        (["nonsense"], "http://"),
        (["http://127.0.0.1:1/"], "cannot be reached"),
        (["http://127.0.0.1:1/", "--only", "nonsense"], "'nonsense'"),
        (["http://127.0.0.1:1/", "-H", "nonsense"], "'Name: value'"),
        (["http://127.0.0.1:1/", "--serve"], "no URL"),
    ],
)
def test_misuse_ends_with_2(arguments, words):
    """What cannot be done is said in a sentence."""
    shown = run(*arguments)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr

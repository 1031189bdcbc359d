"""Any query string to any route gets an answer that is not a failure."""

from fuzz.fuzz_requests import ALLOWED, PATHS, fuzz

REQUESTS = 4_000


def test_any_request_gets_an_answer():
    """Requests that nobody would send are refused or answered, and nothing fails or leaks."""
    answers = fuzz(REQUESTS, seed=7)
    assert answers.total() == REQUESTS
    assert {path for path, _ in answers} == {*PATHS, "elsewhere"}
    assert {status for _, status in answers} == ALLOWED

"""Any query string to any route gets an answer that is not a failure."""

import pytest
from harness.random_requests import ALLOWED, PATHS, fuzz


@pytest.mark.parametrize(
    ("count", "seed"), [(700, 7), pytest.param(20_000, 8, marks=pytest.mark.test_all)]
)
def test_any_request_gets_an_answer(count, seed):
    """Requests that no client would send are refused or answered, and nothing fails or leaks."""
    answers = fuzz(count, seed)
    assert answers.total() == count
    assert {path for path, _ in answers} == {*PATHS}
    assert {status for _, status in answers} == ALLOWED

"""Fixtures of the clients, which are called by one function each."""

import pytest
from harness.calling import async_call, sync_call


@pytest.fixture(params=[sync_call, async_call], ids=["sync", "async"])
def call(request):
    """A function that calls a method of a client, by default `fetch`, with each client in turn."""
    return request.param


@pytest.fixture(
    params=[sync_call, pytest.param(async_call, marks=pytest.mark.test_all)], ids=["sync", "async"]
)
def any_call(request):
    """The same for what both clients share."""
    return request.param

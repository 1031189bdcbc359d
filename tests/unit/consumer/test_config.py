"""What a consumer may be asked to be."""

import pytest

from zeroeventhub.consumer.config import Failures
from zeroeventhub.errors import (
    ConfigurationError,
)


@pytest.mark.parametrize("options", [{"tries": 0}, {"then": "ignore"}, {"hold_back": True}])
def test_failures_that_cannot_be_are_refused(options):
    """There is at least one try, two ways to go on, and nothing to hold back where all halts."""
    with pytest.raises(ConfigurationError):
        Failures(**options)

import math

import pytest

from zeroeventhub import Limits
from zeroeventhub.errors import ConfigurationError


@pytest.mark.parametrize("name", Limits.__dataclass_fields__)
def test_limits_that_bound_nothing_are_refused(name):
    """Bounds are numbers, and there is no way to have none of a size or of all the time."""
    whole = Limits.__dataclass_fields__[name].type is int
    may_be_zero = name in {"bytes_per_second", "grace"}
    taken = [1, 1_000, *([0] if may_be_zero else []), *([] if whole else [1.5, 999_999])]
    refused = [-1, math.nan, math.inf, True, "1", None]
    refused += [*([] if may_be_zero else [0]), *([1.5] if whole else [1_000_000])]
    for value in taken:
        assert getattr(Limits(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigurationError, match=name):
            Limits(**{name: value})

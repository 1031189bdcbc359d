"""How the data of events is read by models, and by functions that take one."""

from dataclasses import dataclass
from functools import partial

import pytest

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.wire.models import choices_of, reader_by_type, reader_for, reader_of


@dataclass
class Paid:
    """A model."""

    cents: int


def in_cents(old: dict, times: int = 100) -> Paid:
    """Make a present event of an old one."""
    return Paid(old["euros"] * times)


class Upcaster:
    """An object that is called."""

    def __call__(self, old: Paid) -> dict:
        """Make a dict of a model."""
        return {"cents": old.cents}


@pytest.mark.parametrize(
    ("model", "text", "data", "made"),
    [
        (Paid, b'{"cents":1}', Paid(1), Paid),
        (list[int], b"[1]", [1], list[int]),
        (Paid | None, b"null", None, Paid | None),
        (in_cents, b'{"euros":2}', Paid(200), Paid),
        (partial(in_cents, times=10), b'{"euros":2}', Paid(20), Paid),
        (Upcaster(), b'{"cents":3}', {"cents": 3}, dict),
        (lambda old: old["x"], b'{"x":"y"}', "y", None),
    ],
)
def test_data_is_read_by_models_and_upcasters(model, text, data, made):
    """A model decodes the data; a function gets it as its annotation says, and returns another."""
    read, returned = reader_for(model)
    assert read(text) == data
    assert made in (None, returned)


def test_what_does_not_fit_is_said_without_the_data():
    """Data that does not fit is an error that names the model, and what is no model another."""
    with pytest.raises(ProtocolError, match="does not fit Paid: Expected `int`"):
        reader_of(Paid)(b'{"cents":"secret"}')
    with pytest.raises(ConfigurationError, match="cannot be decoded"):
        reader_of(Paid | Upcaster)


def test_reader_of_a_type_or_of_all_others():
    """The reader of a type goes before the one of all others; without both it is an error."""
    one, other = reader_of(Paid), reader_of(dict)
    assert reader_by_type({"paid": one, "*": other}, "paid") is one
    assert reader_by_type({"paid": one, "*": other}, "sent") is other
    with pytest.raises(ProtocolError, match="'sent'"):
        reader_by_type({"paid": one}, "sent")


def test_choices_of_a_type():
    """A union has its members, and any other type itself."""
    assert choices_of(Paid | None) == (Paid, type(None))
    assert choices_of(Paid) == (Paid,)

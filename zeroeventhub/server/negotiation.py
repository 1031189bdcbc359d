"""What a client would rather have, where it says so (RFC 9110, section 12)."""

import math
from collections.abc import Iterable, Mapping

from starlette.requests import Request

__all__ = ["prefers", "qualities"]


def prefers(request: Request, wanted: str, usual: str) -> bool:
    """Tell whether a client names a media type, and does not name the usual one as the better.

    Who takes everything gets what everybody gets.

    Args:
        request: the client's.
        wanted: the media type in question.
        usual: what is sent otherwise.
    """
    accepted = qualities(request.headers.getlist("accept"))
    return accepted.get(wanted, 0.0) > 0 and accepted[wanted] >= _of_type(accepted, usual)


def _of_type(accepted: Mapping[str, float], media_type: str) -> float:
    kinds = (media_type, media_type.partition("/")[0] + "/*", "*/*")
    return next((accepted[kind] for kind in kinds if kind in accepted), 0.0)


def qualities(headers: Iterable[str]) -> dict[str, float]:
    """Read how much a client likes each of what a header of preferences lists, from 0 to 1.

    What does not say it in a number is not wanted.
    """
    found = {}
    for item in ",".join(headers).lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights = [one[2:] for one in parameters if one.startswith("q=")]
        if name:
            found[name] = _number(weights[0]) if weights else 1.0
    return found


def _number(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 and math.isfinite(weight) else 0.0

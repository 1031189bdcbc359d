"""Applications whose feeds are read by nobody until they say who may."""

import httpx
import pytest
from fastapi import FastAPI
from harness.readers import (
    GOOD,
    HEADERS,
    READER,
    TOKEN,
    cursor_of,
    get,
    kind,
    raising,
    routes,
    served,
)
from harness.web import serving
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from zeroeventhub import FeedAuthorization, bearer_tokens, everybody
from zeroeventhub.errors import ConfigurationError, Forbidden
from zeroeventhub.server import deny


def full_page(url, **headers):
    """A page that stays as it is for ever."""
    first = cursor_of(get(url, pagesizehint=2, headers=headers))
    return get(url, cursor=first, pagesizehint=2, headers=headers)


def test_shared_cache_is_only_for_everybody(shop):
    """A shared cache gives to all, so a feed that not all may read refuses it."""
    with pytest.raises(ConfigurationError, match="shared cache"):
        routes(shop, lambda request: READER, shared_cache=True)
    for public in (None, everybody):
        with served(shop, public, shared_cache=True) as url:
            answer = full_page(url)
            assert answer.headers["cache-control"].startswith("public")
            assert "vary" not in answer.headers
    hook = bearer_tokens({TOKEN: "reader"})
    with serving(wrapped(shop, None, authorize=hook, shared_cache=True)) as url:
        page = full_page(f"{url}/orders", **HEADERS)
        assert page.headers["cache-control"].startswith("private")
        assert page.headers["vary"] == "Authorization"


def fastapi_of(shop, own, **options):
    """A feed in an application of FastAPI."""
    application = FastAPI(routes=routes(shop, own))
    application.add_middleware(FeedAuthorization, **options)
    return application


def mounted_in_starlette(shop, own, **options):
    """A feed in a Mount that denies, below an application that does not."""
    middleware = [Middleware(FeedAuthorization, **options)]
    below = Mount("/below", routes=routes(shop, own), middleware=middleware)
    return Starlette(routes=[below])


def wrapped(shop, own, *, shared_cache=False, **options):
    """An application as a whole, wrapped by hand."""
    application = Starlette(routes=routes(shop, own, shared_cache=shared_cache))
    return FeedAuthorization(application, **options)


APPLICATIONS = {fastapi_of: "/orders", mounted_in_starlette: "/below/orders", wrapped: "/orders"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "path"), APPLICATIONS.items(), ids=[build.__name__ for build in APPLICATIONS]
)
def test_application_denies_by_default(shop, build, path):
    """In such an application a feed is read by nobody until it says who may."""
    with serving(build(shop, None)) as url:
        for below in GOOD:
            answer = httpx.get(url + path + below, params=GOOD[below], headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (401, "unauthorized")
            assert answer.headers["vary"] == "Authorization"
    with serving(build(shop, everybody)) as url:
        assert httpx.get(url + path).status_code == 200
        assert "vary" not in httpx.get(url + path).headers
    hook = bearer_tokens({TOKEN: "reader"})
    with serving(build(shop, hook)) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
    with serving(build(shop, None, authorize=hook)) as url:
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers=HEADERS).status_code == 200
        page = full_page(url + path, **HEADERS)
        assert page.headers["cache-control"].startswith("private")
        assert page.headers["vary"] == "Authorization"
    with serving(build(shop, raising(Forbidden("Not you.")), authorize=everybody)) as url:
        assert httpx.get(url + path).status_code == 403


def test_rest_of_the_application_is_left_alone(shop):
    """Only feeds take notice of the hook, and a feed may deny by itself."""
    application = FastAPI(middleware=[Middleware(FeedAuthorization)])
    application.router.routes.extend(routes(shop))

    @application.get("/health")
    def health():
        return {"ok": True}

    with serving(application) as url:
        assert httpx.get(f"{url}/health").json() == {"ok": True}
        assert httpx.get(f"{url}/orders").status_code == 401
    with served(shop, deny) as url:
        assert httpx.get(url).status_code == 401

"""The shop and its feed for an ASGI server, such as uvicorn, where readers may wait."""

import os

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
shop = get_asgi_application()

from shop.feeds import feeds  # noqa: E402 - needs the settings

application = Starlette(routes=[Mount("/feeds", feeds), Mount("/", shop)])

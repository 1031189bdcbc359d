"""The shop and its feed for a WSGI server: gunicorn, or manage.py runserver."""

import os

from a2wsgi import ASGIMiddleware
from django.core.wsgi import get_wsgi_application
from werkzeug.middleware.dispatcher import DispatcherMiddleware

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
shop = get_wsgi_application()

from shop.feeds import feeds  # noqa: E402 - needs the settings

application = DispatcherMiddleware(shop, {"/feeds": ASGIMiddleware(feeds)})

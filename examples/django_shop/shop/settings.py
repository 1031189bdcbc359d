"""Settings of the shop."""

import os

from sqlalchemy import create_engine

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
SECRET_KEY = os.environ.get("SHOP_SECRET", "only for this machine")
DEBUG = True
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}}

# The feed and the consumer read through an engine of their own.
ENGINE = create_engine(f"sqlite:///{DATABASE}")

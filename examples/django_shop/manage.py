"""A shop in Django that publishes its orders, and bills the orders of any such feed.

pip install django a2wsgi werkzeug
python manage.py migrate
python manage.py runserver
python manage.py bill http://127.0.0.1:8000/feeds/orders
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)

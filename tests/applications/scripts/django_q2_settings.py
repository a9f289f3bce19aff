"""Django with django-q2, whose results go to a database in SQLite."""

import os
from pathlib import Path

from work import PORT

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q"]
_DATABASE = Path(os.environ["DONE"]).with_name("database.sqlite3")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": _DATABASE}}
Q_CLUSTER = {
    "name": "site",
    "workers": 1,
    "timeout": 60,
    "retry": 90,
    "redis": {"host": "127.0.0.1", "port": PORT},
}

"""django-q2: `django-admin qcluster` runs the worker, `put WORD …` puts jobs."""

import sys

import django

django.setup()

from django_q.tasks import async_task  # noqa: E402 - Django must be set up before

for word in sys.argv[2:]:
    async_task("work.work", word)

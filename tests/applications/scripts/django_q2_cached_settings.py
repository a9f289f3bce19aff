"""The same, with the statistics of django-q2 in Django's cache."""

from django_q2_settings import *  # noqa: F403 - the way of Django's settings
from django_q2_settings import Q_CLUSTER

Q_CLUSTER["broker_class"] = "django_q2_broker.QueueBroker"

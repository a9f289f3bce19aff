"""The Redis broker of django-q2, with its statistics in Django's cache instead of in Redis."""

from django_q.brokers import Broker
from django_q.brokers.redis_broker import Redis


class QueueBroker(Redis):
    set_stat = Broker.set_stat
    get_stat = Broker.get_stat
    get_stats = Broker.get_stats

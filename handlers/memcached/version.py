"""The version of memcached whose replies the handler follows. libmemcached refuses versions 0.x."""

FOLLOWED_VERSION = "1.6.18"

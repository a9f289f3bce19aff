"""The memcached whose replies we follow. Clients go by its number; libmemcached takes no 0.x."""

FOLLOWED_VERSION = "1.6.18"

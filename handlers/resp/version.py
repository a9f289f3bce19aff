"""The Redis whose replies and error texts we follow."""

FOLLOWED_VERSION = "7.0.15"

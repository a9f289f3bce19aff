"""The version of Redis whose replies and error texts the handler follows."""

FOLLOWED_VERSION = "7.0.15"

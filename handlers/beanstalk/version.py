"""The version of beanstalkd that the handler follows."""

FOLLOWED_VERSION = "1.12"

"""Tests of handlers/beanstalk in memory."""

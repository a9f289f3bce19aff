"""Tests of single modules in memory; the folders are those of the source."""

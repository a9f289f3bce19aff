"""Tests of the wire protocols, over the wire: what clients send, and what they receive."""

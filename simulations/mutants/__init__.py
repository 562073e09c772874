"""Faults that the tests must see: each is a small change of the code, with the tests that turn red by it."""

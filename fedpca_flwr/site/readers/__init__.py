"""Readers of a site's files and databases, one module for each kind."""

"""Configurations of runs and sites, validated once."""

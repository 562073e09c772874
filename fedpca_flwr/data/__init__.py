"""Rows as they come: data sets, partitions, tables and data frames."""

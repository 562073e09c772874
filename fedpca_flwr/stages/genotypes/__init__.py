"""Genotypes: allele counts of all rows, then a method on standardised genotypes."""

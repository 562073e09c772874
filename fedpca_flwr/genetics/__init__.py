"""Genotypes: .bed files, allele counts, linkage, relatives, the stage that standardises calls, and its command."""

"""Figures of models and of analyses."""

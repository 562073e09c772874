"""The figures and tables of the papers whose methods are here, a single module each (see its `__main__`)."""

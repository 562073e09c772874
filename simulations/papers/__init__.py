"""The figures and tables of the papers whose methods are here, one module each (see its `__main__`)."""

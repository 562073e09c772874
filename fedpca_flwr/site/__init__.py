"""One party's site: its rules, its rows, its files and its journal."""

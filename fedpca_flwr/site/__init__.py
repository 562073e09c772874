"""A party's own side: its rules, its rows, its files, and what it remembers."""

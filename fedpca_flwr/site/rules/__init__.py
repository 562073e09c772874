"""Rules of a site: its policy, its journal, and what repeated runs may add up to."""

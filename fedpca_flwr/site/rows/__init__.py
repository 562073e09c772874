"""The one way to a site's rows: a selection that the site has examined, and the vault that answers from it."""

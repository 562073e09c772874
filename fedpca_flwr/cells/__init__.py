"""Single cells: .h5ad files and the command that embeds cells."""

"""Single cells: .h5ad files, the choice of genes, and the command that embeds cells."""

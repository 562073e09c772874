"""EM: PCA of rows with missing values."""

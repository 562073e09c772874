"""Highly variable genes of single cells, by the means and deviations that a run over all cells found."""

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.analyses.inputs import require_count, takes_model
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.measurements import is_weighted
from fedpca_flwr.model.model import PCAModel

DISPERSION_BINS = 20  # of the logarithm of means, in each of which dispersions are compared


@takes_model
def highly_variable(model: PCAModel, top: int = 2000) -> NDArray[np.intp]:
    """Select the genes with the largest dispersion compared with genes of about the same mean.

    The dispersion of a gene is its variance divided by its mean. Dispersions are compared within 20 bins of the mean
    (Satija et al. 2015). The result is that of scanpy's ``highly_variable_genes(flavor="seurat")`` for all cells
    together.

    Parameters
    ----------
    model : PCAModel
        Model of a run with ``scale=True`` on counts, normalised to the same sum in each cell, without logarithms.
    top : int, default 2000
        Number of genes. Genes with the same dispersion as the last one are also selected. Genes that do not vary are
        never selected.

    Returns
    -------
    ndarray of shape (top or more,)
        Positions of the genes, ascending.

    Raises
    ------
    ConfigError
        If ``top`` is not from 1 to the number of genes.
    ContractError
        If the model has no deviations, or if its values are not counts.
    """
    if model.scale_ is None or model.mean_ is None or is_weighted(model):
        raise ContractError("the model has no deviations of genes: take one of a run with scale=True")
    if (model.mean_ < 0).any():
        raise ContractError("the model is of values below zero, which are no counts, expected means of 0 or more")
    require_count("top", top, model.mean_.size)
    # a gene that does not vary is divided by 1, and no other is (`safe_deviation`)
    dispersions = _normalised_dispersions(model.mean_, np.where(model.scale_ == 1.0, 0.0, model.scale_**2))
    threshold = np.sort(dispersions[~np.isnan(dispersions)])[::-1][:top][-1]
    return np.flatnonzero(dispersions >= threshold)


def _normalised_dispersions(means: Array, variances: Array) -> Array:
    """Return log dispersions (d,) standardised among genes of similar mean; 1 if alone, NaN for constant genes."""
    with np.errstate(divide="ignore"):
        dispersions = np.log(variances / np.maximum(means, 1e-12))
    dispersions[~np.isfinite(dispersions)] = np.nan
    log_means = np.log1p(means)
    low, high = log_means.min(), log_means.max()
    edges = np.linspace(low, high, DISPERSION_BINS + 1)[1:]
    normalised = np.full(means.size, np.nan)
    bins = np.searchsorted(edges, log_means).clip(max=DISPERSION_BINS - 1)
    for number in np.unique(bins):
        inside = bins == number
        finite = dispersions[inside & ~np.isnan(dispersions)]
        if finite.size == 1:  # alone in its bin: it counts as one deviation out
            normalised[inside] = np.where(np.isnan(dispersions[inside]), np.nan, 1.0)
        elif finite.size:
            normalised[inside] = (dispersions[inside] - finite.mean()) / finite.std(ddof=1)
    return normalised

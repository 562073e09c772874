"""What else the moments of all rows give, without asking the sites again: functions of `SecondMoments`."""

from fedpca_flwr.analyses.canonical import CanonicalCorrelations, canonical_correlations
from fedpca_flwr.analyses.covariates import Adjusted, adjusted
from fedpca_flwr.analyses.discriminant import Discriminant, discriminant
from fedpca_flwr.analyses.factors import FactorModel, factor_analysis
from fedpca_flwr.analyses.how_many import HowMany, how_many
from fedpca_flwr.analyses.how_sure import HowSure, Spikes, how_sure, how_sure_by_parties, spikes, variance_intervals
from fedpca_flwr.analyses.outliers import Drift, Outliers, drift, outliers
from fedpca_flwr.analyses.pca import pca
from fedpca_flwr.analyses.reading import Reading, projected, read, whitened
from fedpca_flwr.analyses.regression import (
    Regression,
    least_squares,
    partial_least_squares,
    principal_component_regression,
    ridge,
)

__all__ = [
    "Adjusted",
    "CanonicalCorrelations",
    "Discriminant",
    "Drift",
    "FactorModel",
    "HowMany",
    "HowSure",
    "Outliers",
    "Reading",
    "Regression",
    "Spikes",
    "adjusted",
    "canonical_correlations",
    "discriminant",
    "drift",
    "factor_analysis",
    "how_many",
    "how_sure",
    "how_sure_by_parties",
    "least_squares",
    "outliers",
    "partial_least_squares",
    "pca",
    "principal_component_regression",
    "projected",
    "read",
    "ridge",
    "spikes",
    "variance_intervals",
    "whitened",
]

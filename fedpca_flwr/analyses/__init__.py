"""Analyses of the moments of all rows: functions of `SecondMoments` or of a model, which ask the sites nothing more.

Each function raises a `ConfigError` if an option is not allowed, a `DataError` if it cannot analyse the rows or
features, and a `ContractError` if the model or the moments lack numbers that it needs.
"""

from fedpca_flwr.analyses.categories import Categories, categories
from fedpca_flwr.analyses.clusters import Clusters, clusters
from fedpca_flwr.analyses.components import (
    FactorModel,
    Reading,
    barycentres,
    factor_analysis,
    pca,
    projected,
    read,
    whitened,
)
from fedpca_flwr.analyses.covariates import AdjustedMoments, adjusted
from fedpca_flwr.analyses.factorability import Factorability, factorability
from fedpca_flwr.analyses.genes import highly_variable
from fedpca_flwr.analyses.groups import MultipleFactorAnalysis, multiple_factor_analysis
from fedpca_flwr.analyses.harmony import harmonised
from fedpca_flwr.analyses.inference import (
    HowMany,
    HowSure,
    Spikes,
    how_many,
    how_sure,
    how_sure_by_parties,
    spikes,
    variance_intervals,
)
from fedpca_flwr.analyses.outliers import Drift, Outliers, drift, outliers
from fedpca_flwr.analyses.relations import (
    CanonicalCorrelations,
    Discriminant,
    Regression,
    canonical_correlations,
    discriminant,
    least_squares,
    partial_least_squares,
    principal_component_regression,
    ridge,
)
from fedpca_flwr.analyses.sparse import SparseComponents, sparse_components

__all__ = ["AdjustedMoments", "CanonicalCorrelations", "Categories", "Clusters", "Discriminant", "Drift", "FactorModel"]
__all__ += ["Factorability", "HowMany", "HowSure", "MultipleFactorAnalysis", "Outliers", "Reading", "Regression"]
__all__ += ["SparseComponents", "Spikes", "adjusted", "barycentres", "canonical_correlations", "categories", "clusters"]
__all__ += ["discriminant", "drift", "factor_analysis", "factorability", "harmonised", "highly_variable", "how_many"]
__all__ += ["how_sure", "how_sure_by_parties", "least_squares", "multiple_factor_analysis", "outliers"]
__all__ += ["partial_least_squares", "pca", "principal_component_regression", "projected", "read", "ridge"]
__all__ += ["sparse_components", "spikes", "variance_intervals", "whitened"]

"""How many components to keep: what each rule says, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigvalsh

from fedpca_flwr.analyses.blocks import require_count
from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths import component_number as rules
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.bi_cross_validation import bi_cross_validation
from fedpca_flwr.second_moments import SecondMoments
from fedpca_flwr.solution import require_variance

MOST_DRAWS = 100_000


@dataclass(frozen=True, eq=False)
class HowMany:
    """Attributes
    ----------
    by_rule : mapping of str to int or None
        How many components each rule keeps, which may be none; None where it does not apply (Minka's with n < d).
        Bi-cross-validation is there where each party's moments are: it holds out parties.
    spectrum : ndarray of shape (d,)
        Eigenvalues of the covariance (divisor n - 1), descending.
    null_band : ndarray of shape (min(n - 1, d),)
        95th percentiles of the eigenvalues that unrelated features of the same variances would have.
    """

    by_rule: Mapping[str, int | None]
    spectrum: Array
    null_band: Array

    def __str__(self) -> str:
        width = max(map(len, self.by_rule)) + 2
        return "\n".join(f"  {rule:<{width}}{'-' if k is None else k}" for rule, k in self.by_rule.items())


@of_moments
def how_many(moments: SecondMoments, *, scale: bool = False, fraction: float = 0.95, draws: int = 100) -> HowMany:
    """What the rules of `fedpca_flwr.maths.component_number` say.

    Parameters
    ----------
    moments : SecondMoments
    scale : bool
        Whether each feature is divided by its standard deviation, as for a PCA: rules that take the noise for equal in
        all features (all but parallel analysis) are meant for features of one unit.
    fraction : float
        Of the variance, for the last rule.
    draws : int
        Of unrelated features, for the null band; always the same ones.

    Raises
    ------
    ConfigError
        For a ``fraction`` that is none.
    DataError
        Where nothing varies.
    """
    if not (isinstance(fraction, float) and 0 < fraction < 1):
        raise ConfigError(f"'fraction' is {value_text(fraction)}, expected a fraction between 0 and 1, as 0.95")
    require_count("draws", draws, MOST_DRAWS)
    used = moments.scaled() if scale else moments
    require_variance(used.moments.diagonal(), used.n_samples, used.mean)
    n, d = used.n_samples, used.n_features
    covariance = used.covariance
    values = eigvalsh(covariance)[::-1].clip(min=0.0)
    band = rules.null_band(np.diagonal(covariance).clip(min=0.0), n, draws)
    by_rule = {
        "parallel analysis (Horn)": rules.parallel_analysis(values, band),
        "Marchenko-Pastur edge": rules.leading_run(values > rules.edge(values, n, d)),
        "optimal threshold (Gavish, Donoho)": rules.leading_run(values > rules.optimal_threshold(values, n, d)),
        "greatest evidence (Minka)": rules.minka(values, n),
        "broken stick": rules.broken_stick(values),
        f"{fraction:.0%} of the variance": rules.fraction(values, fraction),
    }
    if len(used.parties) > 1 and d > 1:
        by_rule["bi-cross-validation (Owen, Perry)"] = bi_cross_validation(list(used.parties.values()))
    return HowMany(by_rule, values, band)

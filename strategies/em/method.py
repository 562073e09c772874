"""EM: the components of rows with missing values, by penalised likelihood in a Gaussian model of all rows.

Take EM if your rows have gaps; docs/missing.md says what EM assumes and how accurate it is. In each round the server
sends the model's mean m and covariance S. Each site fills every gap with its conditional mean, and returns the sums of
the filled rows and of their products, with the conditional covariances added (`fedpca_flwr.strategies.em.gaussian_em`;
`fedpca_flwr.strategies.em.gap_groups`). The iteration ends when an estimate says that the components will turn by less
than ``tolerance`` degrees.

With ``model='factors'``, the covariance is that of probabilistic PCA (`fedpca_flwr.strategies.em.factor_em`): q
directions, and the same noise in all other directions. A site then sends far fewer numbers.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field as Limits
from pydantic import model_validator
from typing_extensions import override

from fedpca_flwr.config.run_config import ComponentChoice, refusal
from fedpca_flwr.maths import eigen, moments
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.model.solution import check_components
from fedpca_flwr.questions import method
from fedpca_flwr.questions.influence import Contributions
from fedpca_flwr.questions.pooling import require_storable_sums, stored_moments
from fedpca_flwr.questions.row_limits import require_resolved
from fedpca_flwr.questions.rows import refuse_impossible_sums
from fedpca_flwr.strategies.em import incomplete, incomplete_limits
from fedpca_flwr.strategies.em.factor_em import FactorEM
from fedpca_flwr.strategies.em.gaussian_em import Gaussian, GaussianEM
from fedpca_flwr.strategies.em.incomplete_client import IncompleteClient

EXTRA_FACTORS = 10  # beyond the components: not all variance outside them is noise (measured in docs/missing.md)


class EMOptions(method.PCAOptions):
    """Options of EM: components, scaling, the model of the rows, and where the iteration ends."""

    unavailable: ClassVar[Mapping[str, str]] = {
        "adjust-for": "the expected values of a gap depend on the covariates, too; keep the moments (keep='moments'), "
        "and take analyses.adjusted of them",
        "harmonise": "the model of the gaps has one mean for all parties; keep each party's moments (keep='parties'), "
        "and take analyses.adjusted of them with parties=True",
        "center": "gaps are filled in about the means of the features, so that rows about zero have no meaning here; "
        "keep the moments (keep='moments'), and take analyses.pca of them with center=False",
        "outliers": "a filled-in value lies nearer to its expected value than a true one, so that rows with gaps "
        "would not be odd; look at complete rows with analyses.outliers",
        "fourth-moments": "a filled-in score varies less than a true one, so that intervals would be too narrow; "
        "resample the rows where all lie in one place",
        "weights": "rows with the same gaps are added up by themselves, and a site counts these rows, not their "
        "weights, before it shows the sum; leave out rows with gaps, and run p-cov with weights",
        "genotypes": "missing calls count as the variant's mean there, and no model of gaps is needed; run p-cov or "
        "qr-pca with genotypes=true",
    }

    n_components: Annotated[ComponentChoice, Limits(examples=[0.3, 0.9, 0.99, "auto"])] = 10  # type: ignore[assignment]  # what others cannot tell, this can
    """Number of components, or the fraction of the variance that they must exceed, or 'auto': the components whose
    variances exceed those of unrelated features with the same variances (parallel analysis)."""
    keep: Literal["nothing", "moments", "parties"] = "nothing"
    """Moments that the server stores with the model (docs/statistics.md): the expected moments of all rows ('moments'),
    and in clear also those of each site ('parties')."""

    model: Literal["gaussian", "factors"] = "gaussian"
    """Model of the rows: a full covariance ('gaussian'), or few directions and noise ('factors'), for more than about
    500 features."""
    factors: Annotated[int, Limits(ge=0)] = 0
    """Number q of factors with model='factors'. With 0 it is n-components + 10."""
    scale: bool = False
    """Divide each feature by the standard deviation of its expected values (with model='factors', of its observed
    values)."""
    prior: Annotated[float, Limits(gt=0, le=1e6, examples=[1e-3, 1.0, 100.0])] = 10.0
    """Weight of the prior: it counts as this many rows of unrelated features. Near 0 it is maximum likelihood."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-6, 1.0, 30.0])] = 0.01
    """Estimated angle to the final components, in degrees, at which the iteration ends. The estimate is not a bound."""
    max_rounds: Annotated[method.Count, Limits(examples=[1, 2, 3])] = 100
    """Largest number of rounds. A model that stops there states the estimated angle that is left."""

    @model_validator(mode="after")
    def _check_factors(self) -> Self:
        """Raise for combinations of options that the chosen ``model`` ('gaussian' or 'factors') does not support."""
        k, q = self.n_components, self.factors
        if self.model == "gaussian":
            if q:
                raise refusal(f"'factors' is {q}, but 'model' is 'gaussian', which has none; set model='factors'")
            return self
        if isinstance(k, str) or k < 1:
            text = "model='factors' takes a number, since it does not find all variances"
            raise refusal(f"'n-components' is {k}, and {text}")
        if self.keep != "nothing":
            text = "model='factors' has no moments of all features; set model='gaussian'"
            raise refusal(f"'keep' is '{self.keep}', and {text}")
        if 0 < q < int(k):
            raise refusal(f"'factors' is {q}, expected at least n-components = {k}")
        return self

    @property
    @override
    def scaled(self) -> bool:
        """True if features are divided by their standard deviations."""
        return self.scale

    @override
    def stored_moments_count(self, parties: int) -> int:
        """Return how many sets of expected moments the option `keep` stores: none, pooled, or also each party's."""
        return {"nothing": 0, "moments": 1, "parties": 1 + parties}[self.keep]


def em_script(config: method.RunConfig, options: EMOptions) -> method.Questions:
    """Return the questions of EM: observed values, E-step sums, and the projection of rows with imputed values.

    The last question has the model that completes rows. Raise ConfigError for ``model='factors'`` with ``max-share`` or
    ``levels``, and for moments to ``keep`` that secure sums do not have.
    """
    require_storable_sums(method.by_transport(config, clear="nothing", masked=options.keep), within=False)
    if options.model == "factors":
        if config.max_share:
            raise method.ConfigError(
                f"run-config: 'max-share' is {config.max_share:g}, but with model='factors' no party sends the scatter "
                "of its rows, from which its share follows; set model='gaussian', or leave out 'max-share'"
            )
        if config.levels:
            raise method.ConfigError(
                "run-config: 'levels' is set, and model='factors' has one noise for all features, which indicators of "
                "levels do not have; set model='gaussian', or leave out the columns of categories"
            )
        max_factors = options.factors or int(options.n_components) + EXTRA_FACTORS
        step = {"products": incomplete.factor_question(options.max_rounds, max_factors)}
        expects = method.Field("factors", ("any", "d"), constant="prediction")
    else:
        step = {"expected": incomplete.expected_question(options.max_rounds)}
        expects = method.Field("covariance", ("d(d+1)/2",), kind="scatter", constant="prediction")
    last = method.projection_questions(extra_fields=(expects,))["project"]
    return {
        **incomplete.observed_questions(config, pairs=options.model == "gaussian"),
        **step,
        "project": replace(last, limits=incomplete.filled_limits),
    }


def _factor_count(k: int, requested: int, rows: int, features: int) -> int:
    """Return the number q of factors: the ``requested`` one, or k + `EXTRA_FACTORS`.

    It is below the number of rows and of features, so that a dimension is left for the noise. Raise ConfigError if k or
    the requested number is not, and as `check_components`.
    """
    check_components(k, rows, features)
    limit = min(rows, features) - 1
    if max(k, requested) > limit:
        key = "factors" if requested > k else "n-components"
        raise method.ConfigError(
            f"run-config: '{key}' is {max(k, requested)}, at most {limit} with "
            f"model='factors', one less than there are rows ({rows}) and features ({features}): the noise needs one; "
            "model='gaussian' has no such limit"
        )
    return min(requested or k + EXTRA_FACTORS, limit)


def _factor_solution(em: FactorEM, mean: method.Array, scale: method.Array, k: int, *, scaled: bool) -> method.Solution:
    """Return the solution with k components of a fitted factor model, in units of the data or ``scaled`` features.

    ``scale`` (d,) is what the features were divided by for the fit; unless ``scaled`` it is the same for all.
    """
    squared = 1.0 if scaled else float(scale[0]) ** 2
    noise_variance = (em.total - float(em.values.sum())) / (scale.size - em.values.size)
    following = em.values[k] if em.values.size > k else noise_variance
    return method.Solution(
        pairs=eigen.Eigenpairs(em.values[:k] * squared, eigen.fix_signs(em.vectors[:, :k]), float(following) * squared),
        mean=mean,
        total=em.total * squared,
        rows=em.rows,
        scale=scale if scaled else None,
    )


CARD = method.MethodCard(
    name="em",
    title="Expectation-maximisation",
    exact=False,
    result="The components come from a penalised likelihood fit (`prior`) to rows with missing values",
    rounds="2, then about 10 until it converges; about 25 with `model='factors'`",
    upload="d(d+1)/2 + d in each round for d features; with `model='factors'` d(q+1) + 2, q = k + 10",
    server_sees="each party's expected covariances, how often each two features have values together; "
    "`model='factors'` their products with d x q blocks, how often each feature has a value",
    disclosure=method.Disclosure(
        "the number of rows, in how many rows each two features both have values, the mean and variances of the values "
        "that are not missing, and in each round the expected covariance under that round's model. So the server "
        "learns more than the covariance of the rows ([missing values](../security/server.md#missing-values-em))",
        "the number of all rows, the means and variances of the values that are not missing, the model's covariance in "
        "each round, and the components",
    ),
    options=EMOptions,
    script=em_script,
    incomplete=True,
    mixed=True,
    pools_moments=True,
    needs=("groups",),
    examples=({}, {"model": "factors"}),
    reference="Dempster, Laird and Rubin 1977; Little and Rubin 2002, section 11.2; Walker and Ni 2011; for "
    "factors Tipping and Bishop 1999, Henderson and Varadhan 2019",
    differences="The publications treat a single data set. The sums over sites are this project's.",
    beyond_moments="a group of rows for each pattern of gaps",
)

EMProgram = Generator[method.Round, Any, tuple[method.Solution, method.Array, float]]
"""Program that returns the solution, bounds (d,) on the rounding of fixed point in each feature's scatter, and the
degrees that the components have to go."""


class EM(method.Strategy):
    """Strategy of EM: eigenvectors of the expected scatter of rows with missing values, under a Gaussian model.

    Attributes
    ----------
    all_rows : int
        Rows of all parties, also those without any value.
    contributions : mapping of str to Moments
        Expected moments of each party in clear, by how texts name the party (``model='gaussian'``).
    party_names : sequence of str
        Names of these parties that are the same in every run.
    covariance : ndarray of shape (d, d), or None
        Covariance under which missing values are expected (``model='gaussian'``).
    expected : Moments or None
        Moments of all rows, with the expectation in place of missing values.
    factors : ndarray of shape (q + 1, d), or None
        Loadings of q factors, and in the last row the noise variances (``model='factors'``).

    Notes
    -----
    Let x be a row with the observed entries o and the missing entries u. At the parties (the E-step) [1]_ [2]_::

        E[x_u] = m_u + S_uo S_oo^-1 (x_o - m_o),    cov[x_u] = S_uu - S_uo S_oo^-1 S_ou

    The parties add up the expected deviations from m and their expected products. At the server (the M-step) the
    expected mean and scatter of the n rows, with a ``prior`` of unrelated features that is worth so many rows, make the
    next m and S. Anderson's method accelerates the iteration [3]_, on m and the logarithm of S.

    With ``model='factors'``, ``x = m + W e + noise`` with q columns in W and noise variance s, the next model is one
    step of subspace iteration on the expected scatter [4]_, accelerated by the same method.

    References
    ----------
    .. [1] Dempster, Laird and Rubin 1977, Maximum likelihood from incomplete data via the EM algorithm.
    .. [2] Little and Rubin 2002, Statistical Analysis with Missing Data, section 11.2.
    .. [3] Walker and Ni 2011, Anderson acceleration for fixed-point iterations.
    .. [4] Tipping and Bishop 1999, Probabilistic principal component analysis.
    """

    card = CARD
    party = IncompleteClient
    options: EMOptions
    contributions: Mapping[str, moments.Moments]
    party_names: Sequence[str]
    all_rows: int
    covariance: method.Array | None = None
    expected: moments.Moments | None = None
    factors: method.Array | None = None

    @override
    def aggregate(self) -> method.Fitting:
        """Fit the chosen model by EM, set the attributes, and return its components; raise as `solution.solve`."""
        observed = yield from incomplete.observed_values(self, scale=self.options.scale)
        self.all_rows = observed.total_rows
        fit = self._fit_factors if self.options.model == "factors" else self._fit_covariance
        solution, error_bounds, remaining_degrees = yield from fit(observed)
        weights = 1.0 if solution.scale is None else solution.scale**-2
        require_resolved(self.config.bound, error_bounds * weights, np.array([max(0.0, solution.total)]))
        evidence = method.Evidence(error_bound=error_bounds, cautions=observed.cautions, units=observed.units)
        if self.expected is not None:
            by_name = dict(zip(self.party_names, self.contributions.values(), strict=True))
            stored = stored_moments(self.options, self.expected, by_name, error_bound=error_bounds)
            contributions = Contributions(self.contributions) if self.contributions else None
            evidence = replace(evidence, stored=stored, contributions=contributions)
        solution = replace(solution, evidence=evidence)
        measured = {"missing_share": observed.missing_share, "degrees_ahead": remaining_degrees}
        return solution.with_details(notes=_notes(observed, remaining_degrees, self.options), measurements=measured)

    def _fit_covariance(self, observed: incomplete.ObservedValues) -> EMProgram:
        """Run EM rounds for a Gaussian model with full covariance until the components converge, or `max_rounds`."""
        options, k = self.options, self.options.n_components
        estimates: list[float] = []  # of the degrees that the components have to go, after each step
        check_components(k, observed.rows, observed.spread.size)
        method.require_variance(observed.rows * observed.spread**2, observed.rows, np.zeros_like(observed.centre))
        em = GaussianEM(observed.rows, observed.mean, observed.spread, prior=options.prior)
        while True:
            model = em.model
            pooled = yield from incomplete.pooled_expected(self, observed, model)
            error_bounds = pooled.error_bounds * observed.spread**2
            with refuse_impossible_sums():
                em.add(pooled.sums)
            expected = observed.in_data_units(em.mean, em.scatter)
            diagonal = expected.diagonal()
            require_resolved(self.config.bound, error_bounds, diagonal.clip(min=0.0))
            units: dict[str, Any] = {"scale": options.scale, "center": True}
            indicators = self.config.indicators
            solution = method.solve(expected, diagonal, n_components=k, indicators=indicators, **units)
            estimates.append(_degrees_ahead(em, model, solution, observed.deviation))
            remaining_degrees = max(estimates[-2:]) if observed.missing_share else 0.0
            if remaining_degrees <= options.tolerance or len(estimates) == options.max_rounds:
                break
        self.expected = expected
        self.contributions = incomplete.party_moments(pooled, observed, model.mean)
        self.party_names = [
            name for name, sender in zip(pooled.names, pooled.parts, strict=False) if sender in self.contributions
        ]
        self.covariance = model.covariance * np.outer(observed.deviation, observed.deviation)
        return solution, error_bounds, remaining_degrees

    def _fit_factors(self, observed: incomplete.ObservedValues) -> EMProgram:
        """Run up to `max_rounds` rounds, until two turn the components little enough; raise as `_factor_count`."""
        options, spread = self.options, observed.spread
        k = int(options.n_components)
        method.require_variance(observed.rows * spread**2, observed.rows, observed.centre)
        q = _factor_count(k, options.factors, observed.rows, spread.size)
        unit = incomplete_limits.factor_unit(observed.model_request(observed.mean), scale=options.scale)
        start = random_block(spread.size, q, self.config.seed)
        em = FactorEM(observed.rows, observed.centre_error / unit, start, prior=options.prior)
        turns: list[float] = []
        while True:
            model = em.model
            sums, error_bounds = yield from incomplete.pooled_products(self, observed, model)
            with refuse_impossible_sums():
                em.add(sums)
            turns.append(float(eigen.principal_angles(model.basis[:, :k], em.model.basis[:, :k]).max()))
            remaining_degrees = max(turns[-2:]) if len(turns) > 2 else 90.0
            if remaining_degrees <= options.tolerance or len(turns) == options.max_rounds:
                break
        scale = np.where(observed.constant & options.scale, 1.0, unit)
        predicted_unit = np.where(observed.constant, 0.0, unit)
        self.factors = np.vstack([(model.loadings * predicted_unit[:, None]).T, model.noise * scale**2])
        mean, _ = moments.two_sum(observed.centre, np.where(observed.constant, observed.centre_error, unit * em.mean))
        return _factor_solution(em, mean, scale, k, scaled=options.scale), error_bounds * unit**2, remaining_degrees

    @override
    def loadings(self, model: method.PCAModel, solution: method.Solution) -> method.Fields:
        """Return the request fields for projecting rows, with the model that imputes missing values."""
        if self.covariance is not None:
            return {**super().loadings(model, solution), "covariance": moments.pack(self.covariance)}
        assert self.factors is not None
        return {**super().loadings(model, solution), "factors": self.factors}

    @override
    def build_model(self, solution: method.Solution) -> method.PCAModel:
        """Build the model, with the covariance or factors that impute missing values."""
        return replace(super().build_model(solution), covariance_=self.covariance, factors_=self.factors)

    @override
    def projected_rows(self, model: method.PCAModel) -> int:
        """Return the number of rows of all parties, including rows without any value."""
        return self.all_rows


def _degrees_ahead(em: GaussianEM, model: Gaussian, solution: method.Solution, deviation: method.Array) -> float:
    """Estimate the degrees that components have to go: the turn of the last step, from a model, times the steps ahead.

    90 is the most, and the estimate while the steps ahead are unknown. Shapes: deviation (d,).
    """
    if em.steps_ahead is None:
        return 90.0
    unit = deviation / (1.0 if solution.scale is None else solution.scale)
    vectors = solution.pairs.vectors
    before = eigen.leading_eigenpairs(em.scatter_of(model) * np.outer(unit, unit), vectors.shape[1]).vectors
    return min(90.0, em.steps_ahead * float(eigen.principal_angles(before, vectors).max()))


def _notes(observed: incomplete.ObservedValues, remaining_degrees: float, options: EMOptions) -> list[str]:
    """Return the model's notes on missing values, empty rows that were left out, and convergence of EM."""
    if not observed.missing_share and options.model == "gaussian":
        return ["no value is missing: these are the components of the rows"]
    notes = [f"penalised likelihood (EM, prior worth {options.prior:g} rows): complete rows may have other components"]
    if observed.unshared_pairs:
        notes.append(
            f"{observed.unshared_pairs} pairs of features have no row in common: how they go together is the model's"
        )
    if observed.rows < observed.total_rows:
        notes.append(f"{observed.total_rows - observed.rows} rows without any value were left out")
    if options.keep != "nothing":
        notes.append(
            "the kept moments are those expected of the rows: intervals and tests by them take missing values for known"
        )
    if remaining_degrees > options.tolerance:
        notes.append(
            f"after max-rounds = {options.max_rounds} steps the components had an estimated {remaining_degrees:.2g} "
            "degrees to go; it may be more, the estimate is no bound"
        )
    return notes

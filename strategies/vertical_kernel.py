"""VERTICAL-KERNEL: the exact kernel PCA of rows whose columns lie at different parties.

Squared distances of rows (for the kernel ``rbf``) and inner products of rows (for the other kernels) are sums over the
parties. The server adds the parties' parts, applies the kernel, centres the kernel matrix in feature space, and takes
its leading eigenpairs with positive eigenvalues. The result has no loadings, and cannot give scores of new rows. With
``landmarks`` the result is Nystrom's approximation, for kernels without negative eigenvalues.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.questions import columns
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions.digits import digits_questions


class VerticalKernelOptions(method.KernelOptions):
    """Options of VERTICAL-KERNEL: components, the kernel, and landmarks."""

    landmarks: Annotated[int, Limits(ge=0, examples=[0, "k+1", "n/2", "n"])] = 0
    """Number c of rows with which distances or products are computed. With 0 all rows are used."""

    @property
    def summed_quantity(self) -> Literal["distances", "products", "landmarks"]:
        """Name of the quantity of rows that the parties add up: 'distances', 'products' or 'landmarks'."""
        if self.landmarks:
            return "landmarks"
        return "distances" if self.function.uses_distances else "products"


def kernel_script(config: method.RunConfig, options: VerticalKernelOptions) -> method.Questions:
    """Return the questions of VERTICAL-KERNEL: rows, sums over entries, distances or products of rows, and scores."""
    if options.landmarks and not options.function.is_semidefinite:
        raise method.ConfigError(
            f"run-config: 'landmarks' is {options.landmarks}, but the kernel '{options.kernel}' may have negative "
            "eigenvalues, for which the approximation is wrong without notice; set landmarks=0"
        )
    centred = options.function.uses_distances
    distances = method.Question(
        reply=method.Payload((method.Field("distances", ("n(n-1)/2",)),)),
        answer=lambda party, request: {"distances": algebra.packed_distances(_compared_columns(party))},
        limits=lambda request, public: {"distances": 4 * columns.product_limit(options, public, centred=centred)},
    )
    landmarks = method.Question(
        request=method.Payload((method.Field("places", ("c",), "int64", kind="size"),)),
        reply=method.Payload((method.Field("landmarks", ("n", "c")),)),
        answer=_answer_landmarks,
        sizes=lambda public: {"c": public.options.landmarks},
        limits=lambda request, public: {"landmarks": 4 * columns.product_limit(options, public, centred=centred)},
    )
    plain_questions = {"distances": distances, "landmarks": landmarks}
    quantities = {name: digits_questions(config, name, question) for name, question in plain_questions.items()}
    quantities["products"] = columns.inner_products_questions(config, options, "products")
    measures = (columns.ENERGY, method.Field("level", ()), method.Field("spread", (), kind="size"))
    sums = ("energy",) if options.gamma else ("energy", "sum")
    energy = columns.measures_question(options, names=sums, answer=_answer_energy_and_sum, centred=centred)
    entry_statistics = columns.LocalStatistic(measures, _answer_entry_measures)
    begin = columns.rows_questions(config, energy, entry_statistics=entry_statistics)
    if "energy" in begin and not options.gamma:
        spread = columns.measures_question(options, method.Field("level", ()), names=("spread",), answer=_answer_spread)
        begin = {**begin, "spread": spread}
    last = columns.keep_scores_questions(
        lambda request: request["directions"] * request["singular"], columns.DIRECTIONS, columns.SINGULAR
    )
    return {**begin, **quantities[options.summed_quantity], **last}


def _answer_entry_measures(party: method.Client, request: method.Fields) -> method.Fields:
    """Return the sum of squares of a party's columns, and the mean and variance of all their entries together."""
    energy, X = party.local_columns.energy, party.local_columns.X
    return {"energy": np.asarray(energy), "level": np.asarray(X.mean()), "spread": np.asarray(X.var())}


def _answer_energy_and_sum(party: method.Client, request: method.Fields) -> method.Fields:
    """Return the sum of squares of a party's columns as the kernel compares them, and the sum of all entries."""
    compared = _compared_columns(party)
    return {"energy": np.asarray(np.vdot(compared, compared)), "sum": np.asarray(party.local_columns.X.sum())}


def _answer_spread(party: method.Client, request: method.Fields) -> method.Fields:
    """Return the sum of squared deviations of all entries of a party's columns from the request's ``level``.

    The level is subtracted from the party's mean only, so that single entries cannot overflow or lose digits.
    """
    X = party.local_columns.X
    mean = X.mean()
    deviation = X - mean
    return {"spread": np.asarray(np.vdot(deviation, deviation) + X.size * (mean - request["level"]) ** 2)}


def _compared_columns(party: method.Client) -> method.Array:
    """Return a party's columns that the kernel compares: centred for distances, else as the options prepare them.

    Distances do not change when the columns are centred, but lose fewer digits, and their limit is smaller.
    """
    of_distances = party.options.function.uses_distances
    return (
        algebra.prepare_columns(party.selection.rows, scale=party.options.scale).X
        if of_distances
        else party.local_columns.X
    )


def _answer_landmarks(party: method.Client, request: method.Fields) -> method.Fields:
    """Return a party's part of the squared distances, or inner products, of all rows with the landmark rows."""
    landmark_rows, rows = request["places"], len(party.selection)
    if landmark_rows.max() >= rows or len(set(landmark_rows.tolist())) < landmark_rows.size:
        raise method.ContractError(
            f"the server's {landmark_rows.size} landmarks are not different ones of the {rows} rows"
        )
    distances = party.options.function.uses_distances
    return {"landmarks": algebra.landmark_sums(_compared_columns(party), landmark_rows, distances=distances)}


CARD = method.MethodCard(
    name="vertical-kernel",
    title="Exact vertical kernel PCA",
    exact=True,
    result="With `landmarks`, approximate",
    rounds="2",
    upload="n(n-1)/2 distances or n(n+1)/2 products for n rows; n c with c `landmarks`",
    server_sees="all distances or inner products of rows",
    disclosure=method.Disclosure(
        "its numbers of rows and columns, mean and spread of all its entries together, and all distances or inner "
        "products of rows over its columns (with `landmarks` those with some rows)",
        "the scores of all rows, the number and choice of landmarks",
    ),
    summed_disclosure=method.Disclosure(
        "the energy of the columns, mean and spread of all entries, and all distances or inner products of rows (with "
        "`landmarks` those with some rows); about each party its numbers of rows and columns, and a digest of its ids",
        "the scores of all rows, the number and choice of landmarks",
    ),
    options=VerticalKernelOptions,
    script=kernel_script,
    reference="Cheung et al. 2022, equations 7 to 12; Schölkopf, Smola, Müller 1998; Williams and Seeger 2001",
    split="columns",
    examples=({}, {"kernel": "linear"}, {"landmarks": 20}),
    exposes="inner products",
    variance_base="that of the kernel",
)


class VerticalKernel(method.Strategy):
    """Strategy of VERTICAL-KERNEL: eigenvectors of the centred kernel matrix of all columns.

    Notes
    -----
    With squared distances ``|x_r - x_s|^2 = sum_i |x_ir - x_is|^2`` or inner products ``x_r' x_s = sum_i x_ir'
    x_is`` over the parties i, the kernel matrix K follows entry by entry [1]_. With ``H = I - 1 1' / n`` the scores are
    eigenvectors of ``H K H`` times the roots of their eigenvalues [2]_. With landmarks, K (n, c) and its rows C at the
    landmarks (c, c) stand for ``K C^+ K'`` [3]_.

    References
    ----------
    .. [1] Cheung et al. 2022, Vertical Federated Principal Component Analysis and Its Kernel Extension on Feature-wise
       Distributed Data, equations 7 to 12.
    .. [2] Schölkopf, Smola and Müller 1998, Nonlinear component analysis as a kernel eigenvalue problem.
    .. [3] Williams and Seeger 2001, Using the Nyström method to speed up kernel machines.
    """

    card = CARD
    options: VerticalKernelOptions

    @property
    @override
    def exact(self) -> bool:
        """True if the kernel matrix is complete, without landmarks."""
        return not self.options.landmarks

    @override
    def aggregate(self) -> method.Fitting:
        """Sum distances or inner products of rows, apply the kernel, and return its leading eigenpairs."""
        replies = yield from columns.aligned_rows(self)
        n, c = self.n_rows, self.options.landmarks
        if c and not self.options.n_components < c <= n:
            raise method.ConfigError(
                f"run-config: 'landmarks' is {c}, expected more than n-components = {self.options.n_components} and at "
                f"most {n}, the rows"
            )
        landmark_rows = np.sort(np.random.default_rng(self.config.seed).choice(n, c, replace=False))
        kernel = replace(self.options.function, gamma=(yield from self._find_gamma(replies)))
        request = {"places": landmark_rows} if self.options.landmarks else {}
        sums: method.Total = yield from columns.sum_in_digits(self, self.options.summed_quantity, request)
        quantity, k = sums[self.options.summed_quantity], self.options.n_components
        error_bound = float(np.max(sums.error_bounds.get(self.options.summed_quantity, 0.0)))
        if kernel.uses_distances:
            columns.require_distances(quantity, error_bound)
        if self.options.landmarks:
            K = columns.finite_kernel(kernel(quantity))
            spectrum = algebra.nystrom_pairs(K, landmark_rows, k)
        else:
            K = columns.finite_kernel(kernel.matrix(quantity, self.n_rows))
            pairs, total, positive = algebra.kernel_pairs(algebra.centre_kernel(K), k)
            spectrum = replace(pairs, error=kernel.error_bound(quantity, self.n_rows, error_bound)), total, positive
        return self._solution(*spectrum, kernel=kernel, size=float(np.abs(K).max()), error_bound=error_bound)

    @override
    def run_projection(self, model: method.PCAModel, solution: method.Solution) -> method.Program:
        """Send the scores to every party for storing, without checking an error."""
        # nobody can tell the error in feature space at home
        yield method.Round("project", {"directions": solution.pairs.vectors, "singular": model.singular_values_})

    # Inside

    def _find_gamma(self, replies: list[method.Reply]) -> Generator[method.Round, Any, float]:
        """Return the kernel's gamma (the option, or ``1 / (m var X)`` of m columns), and store the sum of squares."""
        sums = yield from columns.total_energy(self, replies)
        if self.options.gamma:
            return self.options.gamma
        if sums is None:
            names = ("features", "level", "spread")
            return algebra.default_gamma(*(np.array([reply.fields[name] for reply in replies]) for name in names))
        level = float(sums["sum"]) / (self.n_rows * self.columns)
        spread: method.Total = yield method.SumRound("spread", {"level": np.asarray(level)})
        return self.n_rows / columns.resolved_measure(self, spread, "spread")

    def _solution(
        self, pairs: Eigenpairs, total: float, positive: int, *, kernel: algebra.Kernel, size: float, error_bound: float
    ) -> method.Solution:
        """Return the solution from the kernel matrix's eigenpairs, or refuse a kernel with too few positive ones."""
        n, k = self.n_rows, self.options.n_components
        if total <= n * np.finfo(np.float64).eps * size:
            raise method.DataError(
                "there is no variance to explain: the kernel of any two rows is the same, up to rounding. The rows are "
                "identical, or it cannot tell them apart: set center=true, or another 'gamma' (it is "
                f"{kernel.gamma:.2g})"
            )
        may_be_positive = pairs.values[k - 1 : k].sum() + pairs.error > algebra.KERNEL_ROUNDING * pairs.values[0]
        if positive < k < n and may_be_positive and error_bound:
            raise method.ConfigError(
                f"run-config: 'n-components' is {k}, but beside their largest value the fixed point of secure sums "
                "does not tell these rows apart well enough: set scale=true, lower 'gamma', or run in clear"
            )
        if positive < k:
            n_landmarks = self.options.landmarks
            change = f"'landmarks' = {n_landmarks}, of which some are alike" if n_landmarks else "'gamma' and 'coef0'"
            raise method.ConfigError(
                f"run-config: 'n-components' is {k}, but the kernel '{kernel.name}' of these rows has "
                f"{positive} positive eigenvalues; ask for so many at most, or change {change}"
            )
        notes = []
        if pairs.values[0] * (n - 1) < 3 * total:
            notes.append("the kernel matrix is nearly the identity, and its components mean little: lower 'gamma'")
        return method.Solution(pairs=pairs, total=total, notes=notes, measurements={"gamma": kernel.gamma})

"""Blind runs (run-config ``blind``): a server that learns the number of rows and the spectrum, and nothing else.

PCA is equivariant under rotations (`fedpca_flwr.blind.rotation`). The parties share a secret that the server does not
have (`fedpca_flwr.blind.transport`). The questions:

``sums``
    Count, sums and sums of squares of all rows, as a sealed sum that the parties alone open. It tells them the common
    centre, the units and the trace. Nobody can bend it: a server that moved the centre would read squared loadings off
    two spectra.
``covariates``
    With ``adjust-for``: products of the covariates with all features about that centre, as a sealed sum. It tells the
    parties the slopes, which they take out of the scatter.
``moments``
    Each party sends the scatter of its rows about that centre, rotated, as a share of the trace; the first of the list
    adds noise, which hides what rounding leaves of single parties. The server adds up, and computes components W and
    shares of variance L of the rotated scatter T.
``check``
    Each party multiplies the integers that it sent with W, and with random signs from the secret: a sealed sum, by
    which the parties see that T W' = W' L before they use W.
``project``
    Each party turns the components back, fixes their signs, and writes its own files. It replies constants.

A blind run has rotated rows in two places only: the vault is wrapped (`fedpca_flwr.blind.rotated_vault`), and the
components are turned back.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.blind import Blind
from fedpca_flwr.blind.rotated_vault import Motion, RotatedVault, centred_scatter
from fedpca_flwr.blind.rotation import (
    VECTOR_BITS,
    HaarRotation,
    secret_signs,
    sign_products,
    symmetric_noise_norm,
    vector_integers,
)
from fedpca_flwr.blind.tagged_sums import scaled_integer
from fedpca_flwr.blind.transport import SEALED, SEALED_FIELD, open_sum, sealed_sizes, secret_key
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import require_complete
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.adjustment import Adjustment, fit_adjustment
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, format_upper_bound, resolution
from fedpca_flwr.maths.moments import Head, Moments, max_row_count, packed_size, safe_deviation, varying_features
from fedpca_flwr.maths.sums import pooled_diagonal, pooled_head
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import SCALE_REMEDY, Solution, certainty, check_components, require_variance, solve
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Answer, Public, Question, Questions, SumRound, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.pooling import COUNT, Fitting
from fedpca_flwr.questions.row_limits import MAX_ROWS, read_row_count
from fedpca_flwr.questions.rows import SCATTER, local_moments, uncentred_sums
from fedpca_flwr.questions.rows_client import Closing, Projection, RowsClient, RowsStage
from fedpca_flwr.site.rows.vault import Vault

MAX_FEATURES = 4096  # largest number of features for which a party draws the rotation, a square matrix

NOISE = 2.0**-44
"""Standard deviation of the noise in an entry of the rotated scatter, as share of the trace: docs/security/sums.md."""

COUNT_BITS = 64  # bits of the number of rows after the point: the sum of weights is no whole number
SUM_BITS = 160  # bits of a sum of rows after the point, if `bound` is below 1: sums of squares have twice as many
SIGN_VECTORS = 40  # sign vectors of the check: a false component passes with a probability of 2^-40

SCATTER_LIMIT, SCATTER_BITS = 2.0, 61
"""Limit of an entry of the rotated scatter, whose trace is 1; and bits after the point of what is sent of it."""

CHECK_BITS = 48  # largest residual of a component, for each feature: ``2^-CHECK_BITS`` of the trace
MAX_SLANT = 1e-9  # largest difference of inner products of components from 0 and 1

SUMS_FIELD, PRODUCTS_FIELD = replace(SEALED_FIELD, name="sums"), replace(SEALED_FIELD, name="products")
COVARIATES_FIELD = replace(SEALED_FIELD, name="covariates")
COMPONENTS = Field("components", ("<=k", "d"), kind="orthonormal rows", constant="components")
SHARES = Field("shares", ("<=k",), constant="shares")

SUMS_NAME, MOTION_NAME = "first sums", "motion"  # keys in a party's state: of `_stored_sums`, and of `_stored_motion`


class BlindStage(Blind, RowsStage):
    """Stage of blind runs, as a run enters it."""

    @override
    def method_config(self, config: RunConfig) -> RunConfig:
        """Return the run-config with the changes of the stages that the options select."""
        for stage in _stages(self.options):
            config = stage.method_config(config)
        return config

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Raise ConfigError for options that a blind run lacks, and return its questions in place of the method's."""
        require_plain(self.options)
        for stage in _stages(self.options):
            questions = stage.script(config, questions)  # which refuses options that do not go together
        count = replace(COUNT, dtype="float64", kind="positive") if config.weights else COUNT
        products, sums = {}, SUMS_FIELD
        if self.options.covariates:
            products, sums = {"covariates": _sealed_question(_local_covariates, SUMS_FIELD)}, COVARIATES_FIELD
        return {
            "sums": _sealed_question(_local_sums),
            **products,
            "moments": Question(
                request=Payload((sums,)),
                reply=Payload((count, SCATTER)),
                answer=local_moments,
                sizes=sealed_sizes,
                limits=lambda *_: {"count": np.asarray(float(MAX_ROWS)), "scatter": np.asarray(SCATTER_LIMIT)},
            ),
            "check": _sealed_question(_local_products, COMPONENTS, SHARES),
            "project": Question(
                request=Payload((COMPONENTS, SHARES, Field("following", ()), PRODUCTS_FIELD)),
                reply=Payload((COUNT, Field("squared", (), kind="size"))),
                answer=_finish,
                needs="files",
                sizes=_sizes,
                in_clear=True,
                closing=True,
            ),
        }

    # A party

    @override
    def require_ready(self, party: RowsClient) -> None:
        """Raise ConfigError for too many features, DataError for missing values, and what the stages raise."""
        require_features(party.public.features)
        require_complete(party.site.table, ", or run without 'blind'")
        for stage in _stages(self.options):
            stage.require_ready(party)

    @override
    def info(self, party: RowsClient) -> dict[str, Any]:
        """Return the entries that the stages of the options add to the party's description."""
        return {name: value for stage in _stages(self.options) for name, value in stage.info(party).items()}

    @override
    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Open the sums that the server hands back, and store centre, units, trace and slopes for the run."""
        public, state, columns = party.public, party.site.state, _columns(party)
        if SUMS_FIELD.name in request:
            head, squares = read_sums(public, open_sum(party, "sums", request[SUMS_FIELD.name], _sum_limits(public)))
            state[SUMS_NAME] = [head.n, head.mean, head.remainder, squares]
            if not columns.size:
                _store_motion(party, columns, np.empty((0, public.features)))
        if COVARIATES_FIELD.name in request:
            integers = open_sum(party, "covariates", request[COVARIATES_FIELD.name], _product_limits(public, columns))
            products = np.ldexp(np.array(integers, np.float64), -2 * _sum_bits(public))
            _store_motion(party, columns, products.reshape(columns.size, public.features))

    @override
    def vault(self, party: RowsClient, vault: Vault) -> Vault:
        """Wrap the vault in one that rotates, once the common centre and slopes are known."""
        if MOTION_NAME not in party.site.state:
            return vault
        motion, _ = _stored_motion(party)
        noise_key = b"" if party.site.node.partition_id else secret_key(party, b"noise")
        rotation_key, state = secret_key(party, b"rotation"), party.site.state
        return RotatedVault(vault, motion, rotation_key, state, noise_key=noise_key, noise=NOISE)

    # The server

    @override
    def fit(self, run: PCAStrategy, fitting: Fitting) -> Fitting:
        """Ask for the first sums, hand them back, and decompose the rotated scatter in place of the method."""
        fitting.close()
        features = run.public.features
        require_features(features)
        sums: Total = yield SumRound("sums")
        covariates = self.options.covariate_names(run.config.levels_by_column)
        request = {SUMS_FIELD.name: sums["sealed"]}
        if covariates:
            products: Total = yield SumRound("covariates", request)
            request = {COVARIATES_FIELD.name: products["sealed"]}
        total: Total = yield SumRound("moments", request)
        rows = read_row_count(total["count"], total.parties, weighted=bool(run.config.weights))
        check_components(self.options.n_components, rows, features - len(covariates))
        zeros = np.zeros(features)
        moments = Moments(rows, zeros, zeros, total["scatter"])
        solution = solve(moments, moments.diagonal(), n_components=self.options.n_components, center=True, scale=False)
        pairs = replace(solution.pairs, error=noise_norm(features))
        self._pairs = pairs
        return replace(solution, pairs=pairs, total=1.0).with_details(notes=[noise_note(pairs)])

    @override
    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Let the parties multiply the sums that they have sent with the components, and return the sum to them."""
        fields = {"components": np.ascontiguousarray(self._pairs.vectors.T), "shares": self._pairs.values}
        products: Total = yield SumRound("check", fields)
        following = np.asarray(self._pairs.following)
        return {**fields, "following": following, PRODUCTS_FIELD.name: products["sealed"]}

    @override
    def release(self, model: PCAModel) -> PCAModel:
        """Return the model without components (0, d) and mean (None), which in rotated features are of no use."""
        return replace(model, components_=np.empty((0, self._pairs.vectors.shape[0])), mean_=None)


def require_plain(options: Any) -> None:
    """Raise one ConfigError for all options that a blind run does not have."""
    reasons = {
        "keep": "keeps the covariance at the server, which does not have it",
        "prune": "asks for sums over pairs of variants",
        "fourth_moments": "asks for more than the scatter",
        "outliers": "asks for more than the scatter",
        "clusters": "asks for more than the scatter",
    }
    chosen = options.model_dump(exclude_defaults=True).keys() - {"n_components", "scale", "genotypes"}
    chosen -= {"adjust_for", "numbers"}
    no_option = "is no option of a blind run"
    faults = [f"'{name.replace('_', '-')}' {reasons.get(name, no_option)}" for name in sorted(chosen)]
    if options.n_components == "auto":
        faults.append("n-components='auto' needs the variance of each feature, which the server does not have")
    if faults:
        lines = [f"run-config: 'blind' is true, and {fault}: leave out one of them" for fault in faults]
        raise ConfigError("\n".join(lines))


def require_features(features: int) -> None:
    """Raise ConfigError for more than `MAX_FEATURES` features."""
    if features > MAX_FEATURES:
        raise ConfigError(
            f"run-config: 'blind' is true, and the data have {features:,} features, expected at most {MAX_FEATURES:,}: "
            "choose fewer, or run without 'blind'"
        )


def noise_norm(features: int) -> float:
    """Return a bound on the spectral norm of the noise, as a share of the trace."""
    return NOISE * symmetric_noise_norm(features)


def noise_note(pairs: Eigenpairs) -> str:
    """Write the note on the noise, and on the angle by which it may turn the components."""
    angle = resolution(pairs).angle
    bound = "by any angle" if angle >= 90 else f"by at most {format_upper_bound(angle)} degrees"
    return (
        f"the parties added noise of 2^{int(np.log2(NOISE))} of the variance to each entry of the rotated scatter, "
        f"once; with rounding it may turn the components {bound}"
    )


def _sizes(public: Public) -> dict[str, int]:
    """Return the sizes of symbolic axes: ``k`` features, and those of sealed sums."""
    return {**sealed_sizes(public), "k": public.features}


def _sealed_question(answer: Answer, *request: Field) -> Question:
    """Return a question whose sum the parties alone can open; its integers have limits of their own, none in floats."""
    keys: dict[str, Any] = {"needs": "files", "sizes": _sizes, "limits": lambda *_: {}}
    return Question(request=Payload(request), reply=SEALED, answer=answer, **keys)


def _stages(options: Any) -> list[RowsStage]:
    """Return the stages that the method's options select."""
    return [stage.enter(options) for stage in options.stages]


def _columns(party: RowsClient) -> NDArray[np.int64]:
    """Return the columns (q,) of the covariates in a party's table."""
    columns = [stage.covariate_columns(party) for stage in _stages(party.options)]
    return np.concatenate([np.empty(0, np.int64), *columns])


def _bound(public: Public) -> float:
    """Return the largest absolute value of the rows: the `bound`, or that of a stage."""
    return BlindStage(public.options).method_config(public.config).bound


def _has_units(public: Public) -> bool:
    """Return whether features are divided."""
    return public.options.scaled or any(stage.scales for stage in _stages(public.options))


def _needs_squares(public: Public) -> bool:
    """Return whether the parties need the sum of squares of each feature, to scale or to adjust."""
    return _has_units(public) or bool(public.options.covariates)


def _sum_bits(public: Public) -> int:
    """Return how many bits sums of rows have after the point; sums of squares have twice as many."""
    return SUM_BITS - int(np.frexp(_bound(public))[1])


def _sum_limits(public: Public) -> list[int]:
    """Return the limits of the integers of `read_sums`."""
    bits, d = _sum_bits(public), public.features
    reach = int(Fraction(_bound(public)) * Fraction(2) ** bits) + 1
    squares = [MAX_ROWS * reach**2] * d if _needs_squares(public) else [MAX_ROWS * reach**2 * d]
    return [MAX_ROWS << COUNT_BITS, *[MAX_ROWS * reach] * d, *squares]


def _local_sums(party: RowsClient, request: Fields) -> Fields:
    """Return ``integers`` as `read_sums` has them; raise what `Site.permit_blind` raises."""
    party.site.permit_blind(party.card, party.options)
    head, diagonal = party.vault.head_and_diagonal()
    parts, bits = uncentred_sums(head, diagonal), _sum_bits(party.public)
    sums = zip(*(part["sum"] for part in parts if "sum" in part), strict=True)
    squares: Sequence[Sequence[float]] = list(zip(*(part["squares"] for part in parts), strict=True))
    if not _needs_squares(party.public):
        squares = [[square for feature in squares for square in feature]]
    integers = [
        scaled_integer([float(head.n)], COUNT_BITS),
        *(scaled_integer(values, bits) for values in sums),
        *(scaled_integer(values, 2 * bits) for values in squares),
    ]
    return {"integers": np.array(integers, dtype=object)}


def _local_covariates(party: RowsClient, request: Fields) -> Fields:
    """Return ``integers`` (q * d,): products of covariates with all features about the common centre."""
    scatter, bits = centred_scatter(party.vault, _stored_sums(party)[0]), 2 * _sum_bits(party.public)
    integers = [scaled_integer([value], bits) for value in scatter[_columns(party)].ravel().tolist()]
    return {"integers": np.array(integers, dtype=object)}


def _product_limits(public: Public, columns: NDArray[np.int64]) -> list[int]:
    """Return the limits of the products of covariates with features, whose deviations are up to twice the bound."""
    reach = int(Fraction(_bound(public)) * Fraction(2) ** _sum_bits(public)) + 1
    return [MAX_ROWS * (2 * reach) ** 2] * (columns.size * public.features)


def read_sums(public: Public, integers: Sequence[int]) -> tuple[Head, Array]:
    """Compute the common centre and the squared deviations, of each feature (d,) or of all (), from the opened sums.

    The integers are count, d sums, and d sums of squares or their sum; raise ContractError if no rows have such sums.
    """
    d, bits = public.features, _sum_bits(public)
    weighted = bool(public.config.weights)
    count = np.asarray(integers[0] / 2**COUNT_BITS if weighted else integers[0] >> COUNT_BITS)
    rows = read_row_count(count, public.parties, weighted=weighted)
    sums, squares = np.array(integers[1 : d + 1], object), np.array(integers[d + 1 :], object)
    exponents = np.full(d, bits, np.int32)
    if _needs_squares(public):
        deviations = pooled_diagonal(rows, (sums, exponents), (squares, 2 * exponents))
    else:
        trace = (squares[0] - sum(value**2 for value in sums) / Fraction(rows)) / Fraction(2) ** (2 * bits)
        deviations = np.asarray(float(trace))
    if (deviations < 0).any():
        raise ContractError("the parties' sums together are not those of any rows: the share of one of them is false")
    return pooled_head(rows, (sums, exponents)), deviations


def make_motion(
    public: Public, centre: Head, squares: Array, columns: NDArray[np.int64], products: Array
) -> tuple[Motion, int]:
    """Compute what is done with rows (centre, slopes, units and trace), and a bound on the rank of their scatter.

    `squares` (d,) or () are squared deviations, `products` (q, d) those of the covariates with all features. Raise
    DataError if nothing is left to analyse.
    """
    d, rows, mean = public.features, centre.n, centre.mean
    scatter = np.zeros((d, d))  # of which the slopes need these rows
    scatter[columns] = products
    adjustment, _ = fit_adjustment(scatter, columns)
    units, varying = np.ones(d), d
    if squares.ndim:
        squares = adjustment.residual_diagonal(squares, products)
        varying = int(varying_features(squares, mean).sum())
    if columns.size and not squares.any():
        raise DataError("the covariates explain all features: nothing is left to analyse")
    require_variance(squares, rows, mean)
    if _has_units(public):
        of_stages = [given for stage in _stages(public.options) if (given := stage.units(mean)) is not None]
        units = of_stages[0] if of_stages else safe_deviation(squares, rows, mean, public.config.indicators)
    explained = (squares == 0) & bool(columns.size) & np.ones(d, bool)
    total = float((squares / units**2).sum() if squares.ndim else squares)
    return Motion(centre, units, total, adjustment, explained), min(max_row_count(rows) - 1, varying)


def _stored_sums(party: RowsClient) -> tuple[Head, Array]:
    """Return the common centre and the squared deviations, as stored for the run."""
    count, mean, remainder, squares = party.site.state[SUMS_NAME]
    return Head(count.item(), mean, remainder), squares


def _store_motion(party: RowsClient, columns: NDArray[np.int64], products: Array) -> None:
    """Compute the treatment of rows and their rank (`make_motion`), and store both for the run."""
    motion, rank = make_motion(party.public, *_stored_sums(party), columns, products)
    party.site.state[MOTION_NAME] = [
        *(motion.units, motion.total, rank),
        *(motion.adjustment.covariate_columns, motion.adjustment.slopes, motion.explained),
    ]


def _stored_motion(party: RowsClient) -> tuple[Motion, int]:
    """Return the treatment of rows, and the rank, as stored for the run."""
    units, total, rank, columns, slopes, explained = party.site.state[MOTION_NAME]
    centre, _ = _stored_sums(party)
    return Motion(centre, units, float(total), Adjustment(columns, slopes), explained.astype(bool)), int(rank)


def _signs(party: RowsClient) -> Array:
    """Return the secret sign vectors (m, d) of the check."""
    return secret_signs(secret_key(party, b"signs"), (SIGN_VECTORS, party.public.features))


def _local_products(party: RowsClient, request: Fields) -> Fields:
    """Return ``integers``: products of signs, the integers that this party sent as its scatter, and the components."""
    d = party.public.features
    layout = party.questions["moments"].layout({}, party.public)
    sent = layout.encode(local_moments(party.party, {}))[-packed_size(d) :].view(np.int64)
    matrix, start = np.zeros((d, d), np.int64), 0
    for i in range(d):
        matrix[i, i:] = matrix[i:, i] = sent[start : start + d - i]
        start += d - i
    products = sign_products(_signs(party), matrix, vector_integers(request["components"]))
    return {"integers": products.ravel()}


def require_components(party: RowsClient, request: Fields, rank: int) -> None:
    """Raise DisclosureError for components (k, d) that are no leading eigenvectors of the parties' rotated scatter.

    Whoever publishes a model of others tells the server directions of its choice. `rank` bounds that of the scatter.
    """
    components, shares = request["components"], request["shares"]
    k, d = components.shape
    refusal = DisclosureError(
        f"{SERVER}: its components are not eigenvectors of the sum of what the parties have sent; no model is made"
    )
    limits = [d * d << (SCATTER_BITS + VECTOR_BITS + 2)] * (SIGN_VECTORS * k)
    products = np.array(open_sum(party, "check", request[PRODUCTS_FIELD.name], limits), object)
    if len(shares) != k or not (np.abs(components @ components.T - np.eye(k)) <= MAX_SLANT).all():
        raise refusal
    values = np.array([round(Fraction(share) * 2**SCATTER_BITS) for share in shares.tolist()], object)
    images = _signs(party).astype(np.int64) @ vector_integers(components).T
    residuals = products.reshape(SIGN_VECTORS, k) - images.astype(object) * values
    if np.abs(residuals).max() > d << (SCATTER_BITS + VECTOR_BITS - CHECK_BITS):
        raise refusal
    slack = 4 * d * NOISE
    falling = (np.diff(shares) <= slack).all()
    remaining = (1 - float(shares.sum())) / (rank - k) if rank > k else 0.0
    if not falling or shares[-1] < remaining - slack:
        raise refusal


def _finish(party: RowsClient, request: Fields) -> Fields:
    """Check the components, write this party's model, scores and loadings, drop the vault, and return constants."""
    motion, rank = _stored_motion(party)
    require_components(party, request, rank)
    rotation = HaarRotation(secret_key(party, b"rotation"), party.public.features)
    turned_back = rotation.turned_back(request["components"].T)
    turned_back[motion.explained] = 0.0  # where nothing is left, noise is no loading
    vectors = fix_signs(turned_back)
    values, following = request["shares"] * motion.total, float(request["following"]) * motion.total
    pairs = Eigenpairs(values, vectors, following, rank, error=noise_norm(len(vectors)) * motion.total)
    model = party_model(party, pairs, motion)
    if party.site.node.model:
        model.save(Path(party.site.node.model).expanduser() / f"model-{party.site.run_id}.npz", private=True)
    components, mean = model.loadings()
    scale = np.empty(0) if model.scale_ is None else model.scale_
    if model.adjustment_ is not None:
        components, scale = model.adjustment_.equivalent_loadings(components / motion.units), np.empty(0)
    party.write_files(Projection(party.vault, components, mean, scale, party.site.table.names_digest))
    party.vault.drop()
    return {"count": np.asarray(1), "squared": np.asarray(0.0)}


def party_model(party: RowsClient, pairs: Eigenpairs, motion: Motion) -> PCAModel:
    """Make a party's model, with the names of its columns, from eigenpairs in the features' own axes."""
    options, config, scales = party.options, party.site.config, _has_units(party.public)
    assessment = certainty(pairs, exact=True, remedies=[] if scales else [SCALE_REMEDY])
    solution = Solution(
        pairs=pairs,
        mean=motion.centre.mean,
        total=motion.total,
        rows=motion.centre.n,
        scale=motion.units if scales else None,
        adjustment=motion.adjustment if motion.adjustment.covariate_columns.size else None,
    )
    log = {
        "method": party.card.name,
        "exact": assessment.exact,
        "options": options.model_dump(by_alias=True),
        "parties": [{"party": i, "name": "", "rows": None} for i in range(party.public.parties)],
        "rounds": [],
        "measured": {},
        "columns": party.site.table.names_digest,
        **({"levels": config.levels_by_column} if config.levels else {}),
        **({"transform": config.transform} if config.transform else {}),
        "notes": [noise_note(pairs), *assessment.notes],
    }
    return PCAModel.of(solution, log).named(config.feature_names or party.site.table.names)

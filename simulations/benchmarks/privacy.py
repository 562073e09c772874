"""Privacy: what noise costs in captured variance, and what masks cost in bytes and time."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedpca_flwr.data import datasets
from fedpca_flwr.maths.rows import row_lengths
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import (
    COMPONENTS,
    DIGITS,
    Lines,
    alternated,
    benchmark,
    clients,
    cpu_seconds,
    drawn,
    ratio,
)
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.transports.neighbours import degree


@benchmark(
    dataset={"choices": ["mnist", "images", "digits", "breast-cancer", "elliptical", "heavy-tailed"]},
    data_root=".",
    file="",
    clients=10,
    components=50,
    draws=3,
    replaced=0.0,
    trust={"default": "distributed", "choices": ["local", "distributed"]},
    epsilons=[0.5, 1.0, 2.0],
    clips=[0.25, 1.0, 4.0],
    figure="",
)
def privacy(args: Namespace) -> Lines:
    """DP-PCA by shells and directions, which need no bound, beside rows clipped to lengths that were found in the data.

    Dirichlet 0.1 (``--file`` of numbers by commas or spaces, and drawn rows: split evenly), delta 1e-5, one row added
    or removed; means of several draws of the noise. ``--clips`` names the multiples of the rows' median length that are
    tried, of which epsilon takes no account; a user guesses them. Captured variance is against the exact components';
    claimed, what the model's own variances say. ``--replaced 0.05`` has every twentieth row replaced by one of 1e6 in
    each feature, captured variance being that of the other rows. With ``trust='distributed'`` the server of this
    simulation adds the replies up itself; ``--clients 1 --trust local`` is the same noise in all, drawn once.
    ``--figure FILE`` draws what is captured.
    """
    kept: dict[str, list[float]] = {}
    rows, parts = rows_of(args)
    whole = run("p-cov", [rows], n_components=rows.shape[1])
    truth = run("p-cov", [rows], n_components=args.components)
    private = [dirty(part, args.replaced) for part in parts] if args.replaced else parts
    yield "release", "epsilon", "captured variance", "claimed", "mean angle (deg)", "max"
    for release in releases(rows, args.clips):
        for epsilon in args.epsilons:
            options = {"epsilon": epsilon, "trust": args.trust, "honest_parties": args.clients, **release}
            measured = []
            for _ in range(args.draws):
                model = run("dp-pca", private, n_components=args.components, **options)
                angles = principal_angles(model, truth)
                claimed = float(model.explained_variance_ratio_.sum())
                measured.append((captured(model, whole), claimed, angles.mean, angles.max))
            held, claimed, mean, most = np.mean(measured, axis=0)
            name = " ".join(str(value) if isinstance(value, str) else f"{value:.4g}" for value in release.values())
            kept.setdefault(name, []).append(held)
            share = "unknown" if np.isnan(claimed) else f"{claimed:.2%}"
            yield name, f"{epsilon:g}", f"{held:.2%}", share, f"{mean:.1f}", f"{most:.0f}"
    if args.figure:
        _draw(kept, args.epsilons, args.figure)


def _draw(kept: dict[str, list[float]], epsilons: Sequence[float], file: str) -> None:
    """The share of the variance that each release keeps, against epsilon; the clips, which a user guesses, in grey."""
    from matplotlib.figure import Figure  # an extra

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    clips = [name for name in kept if name.startswith("joint")]
    for name, shares in kept.items():
        colour = {"shells": "tab:blue", "directions": "tab:orange"}.get(name, "0.7")
        label = "joint, by clip" if name in clips[:1] else name if name not in clips else None
        axes.plot(epsilons, 100 * np.array(shares), marker="o", color=colour, label=label, zorder=2 - (name in clips))
    axes.set(xscale="log", xlabel="epsilon", ylabel="variance captured (%)", xticks=epsilons)
    axes.set_xticklabels([f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(file, metadata={"Date": None})


def rows_of(args: Any) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """All rows, and those of each client."""
    rows = rows_drawn(args.dataset == "heavy-tailed")
    if args.file:
        lines = Path(args.file).read_text(encoding="utf-8").replace(",", " ").splitlines()
        table = np.genfromtxt(lines)
        rows = table[:, np.isfinite(table).all(axis=0)]
    if args.file or args.dataset in ("elliptical", "heavy-tailed"):
        return rows, np.array_split(rows, args.clients)
    rows = datasets.load(args.dataset, args.data_root).all_rows()
    return rows, clients(args.dataset, args.data_root, args.clients)


def rows_drawn(heavy: bool) -> NDArray[Any]:
    """Rows (20000, 40) whose deviations fall by 15 % from axis to axis; heavy: of Student's t with 3 degrees."""
    rng = np.random.default_rng(7)
    axes = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    far = np.sqrt(3 / rng.chisquare(3, (20_000, 1))) if heavy else 1.0
    rows: NDArray[Any] = rng.standard_normal((20_000, 40)) * 0.85 ** np.arange(40) * far @ axes + 2
    return rows


def releases(rows: NDArray[Any], clips: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Options of `dp-pca`: the two that need no bound, and the other with bounds that were read off the data."""
    yield {"release": "shells"}
    yield {"release": "directions"}
    length = np.median(row_lengths(rows[:: max(1, len(rows) // 5000)].astype(np.float64)))
    for clip in clips:
        yield {"release": "joint", "clip": float(clip * length)}


def dirty(rows: NDArray[Any], share: float) -> NDArray[Any]:
    """Rows of which a share is replaced by what is far off."""
    changed = rows.astype(np.float64)
    changed[:: round(1 / share)] = 1e6
    return changed


def captured(model: PCAModel, truth: PCAModel) -> float:
    """The variance that a model's components hold, as a share of what the exact ones do.

    The second moment of the rows is taken from all components of the exact model, so no row is read.
    """
    loadings = model.loadings()[0] @ truth.loadings()[0].T
    best = truth.explained_variance_[: model.n_components_].sum()
    return float((loadings**2 @ truth.explained_variance_).sum() / best)


@benchmark(runs=200, epsilon=2.0)
def intervals(args: Namespace) -> Lines:
    """How often dp-pca's intervals hold the variances of rows within the reach of each run, and those of all rows.

    4,000 rows of six features, three components and three parties, unless the name of the shape says otherwise; each
    party adds the whole noise. The counts are of the component that is held least often, the medians of widths over
    variances; none is told of a component that the noise hides. The 300 rows have five times the epsilon: else all
    are hidden.
    """
    yield "shape", "epsilon", "held within reach", "held of all rows", "none told", "median width"
    for number, (shape, (rows, k, parties)) in enumerate(SHAPES.items()):
        epsilon = args.epsilon * (5 if "300" in shape else 1)
        within, of_all, widths = np.zeros(k, dtype=int), np.zeros(k, dtype=int), []
        for seed in range(args.runs):
            X = rows(np.random.default_rng([number, seed]))
            model = run("dp-pca", np.array_split(X, parties), n_components=k, epsilon=epsilon, noise_seed=1 + seed)
            found = model.log["variance_intervals_within_reach"]
            variances = variances_of(X - X.mean(axis=0), np.inf)
            short = variances_of(X - model.loadings()[1], found["reach"])
            for place, ends in enumerate(found["intervals"]):
                low, high = ends or (0.0, np.inf)
                within[place] += low <= short[place] <= high
                of_all[place] += low <= variances[place] <= high
                widths.append((high - low) / short[place])
        held, hidden = f"{within.min()} of {args.runs}", f"{np.mean(np.isinf(widths)):.0%}"
        yield shape, f"{epsilon:g}", held, of_all.min(), hidden, f"{np.median(widths):.2f}"


def variances_of(centred: NDArray[Any], reach: float) -> NDArray[Any]:
    """The variances of centred rows (n, d) along their principal axes, where all are shortened to the reach."""
    near = centred * np.minimum(1.0, reach / row_lengths(centred))[:, None]
    return np.linalg.svd(near, compute_uv=False) ** 2 / (len(near) - 1)


def normal(rng: np.random.Generator, n: int = 4000, d: int = 6) -> NDArray[Any]:
    """Normal rows (n, d)."""
    axes = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 1.0]) if d == 6 else 5 * 0.85 ** np.arange(d)
    rows: NDArray[Any] = rng.standard_normal((n, d)) * axes
    return rows


def student(rng: np.random.Generator, degrees: float) -> NDArray[Any]:
    """Rows of Student's t."""
    return normal(rng) * np.sqrt(degrees / rng.chisquare(degrees, (4000, 1)))


def mixture(rng: np.random.Generator, share: float, factor: float) -> NDArray[Any]:
    """Normal rows of which a share is so many times as long."""
    far = np.where(rng.permutation(4000) < share * 4000, factor, 1.0)
    return normal(rng) * far[:, None]


def two_clusters(rng: np.random.Generator) -> NDArray[Any]:
    """Normal rows of which three tenths are 20 farther along the third feature."""
    rows: NDArray[Any] = normal(rng) + np.outer(rng.random(4000) < 0.3, [0, 0, 20, 0, 0, 0])
    return rows


Shape = tuple[Callable[[np.random.Generator], NDArray[Any]], int, int]

SHAPES: dict[str, Shape] = {
    "normal": (normal, 3, 3),
    "t of 2.1 degrees": (partial(student, degrees=2.1), 3, 3),
    "t of 5 degrees": (partial(student, degrees=5.0), 3, 3),
    "0.2 % 1,000 times as long": (partial(mixture, share=0.002, factor=1000.0), 3, 3),
    "1 % 10 times as long": (partial(mixture, share=0.01, factor=10.0), 3, 3),
    "5 % 100 times as long": (partial(mixture, share=0.05, factor=100.0), 3, 3),
    "lognormal lengths": (lambda rng: normal(rng) * np.exp(1.5 * rng.standard_normal((4000, 1))), 3, 3),
    "two clusters": (two_clusters, 3, 3),
    "300 rows": (partial(normal, n=300), 3, 3),
    "50 features, 5 components": (partial(normal, d=50), 5, 3),
    "one party": (normal, 3, 1),
    "twenty parties": (normal, 3, 20),
}
"""Of `intervals`: how rows are drawn, and how many components and parties there are."""


@benchmark(
    **DIGITS,
    clients=10,
    components=COMPONENTS,
    seed=42,
    repeats=3,
    bound=16.0,
    features=256,
    parties={"type": int, "nargs": "+"},
)
def secure(args: Namespace) -> Lines:
    """Secure aggregation against the same method without: angles, bytes, seconds.

        python -m fedpca_flwr.simulations.benchmarks secure --dataset mnist --data-root DEST --bound 255
        python -m fedpca_flwr.simulations.benchmarks secure --parties 10 100 1000 --features 256

    No value is larger in size than the bound. With ``--parties`` instead how it grows: p-cov of 60 rows each, CPU
    seconds.
    """
    if args.parties:
        with threadpool_limits(1, user_api="blas"):
            yield from with_many_parties(args)
        return
    parties = clients(args.dataset, args.data_root, args.clients, seed=args.seed)
    pooled = pooled_pca(np.vstack(parties), args.components)
    yield "method", "angle to plain (deg)", "to pooled PCA", "fixed point", "bytes up, times plain", "down", "time"
    for method in ("p-cov", "sub-it", "ap-cov"):
        models: dict[bool, PCAModel] = {}

        def fit(masked: bool, method: str = method, models: dict[bool, PCAModel] = models) -> None:
            more: dict[str, Any] = {"secure_aggregation": True, "bound": args.bound} if masked else {}
            models[masked] = run(method, parties, n_components=args.components, min_rows=1, **more)

        short, long = alternated([partial(fit, False), partial(fit, True)], args.repeats).min(axis=0)
        plain, masked = models[False], models[True]
        times = [bytes_of(masked, way) / bytes_of(plain, way) for way in ("up", "down")]
        angles = [f"{principal_angles(masked, other).max:.1e}" for other in (plain, pooled)]
        off = f"{masked.log['measured']['fixed_point_variance_share']:.1g} of the variance"
        spent = f"{long / short:.2f} ({short:.2f} s, {long:.2f} s)"
        yield method, *angles, off, f"{times[0]:.3f}", f"{times[1]:.2f}", spent


def bytes_of(model: PCAModel, way: str) -> int:
    return sum(sum(entry[way]) for entry in model.log["rounds"])


def with_many_parties(args: Namespace) -> Lines:
    """With how many others each shares masks, and CPU seconds of whole runs of p-cov."""
    yield "parties", "neighbours of each", "plain (s)", "secure (s)", "secure (ms) a party", "secure / plain"
    for number in args.parties:
        plainly = partial(run, "p-cov", drawn(number, 60, args.features), n_components=5)
        masked = partial(plainly, secure_aggregation=True, bound=20.0)
        times = alternated([masked, plainly], args.repeats, cpu_seconds)
        secure, plain = np.median(times, axis=0)
        cells = f"{plain:.2f}", f"{secure:.2f}", f"{1e3 * secure / number:.1f}", f"{ratio(times, 0, 1):.1f}"
        yield f"{number:,}", degree(number), *cells

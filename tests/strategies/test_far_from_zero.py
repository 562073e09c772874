"""However far from zero rows are, and in whatever unit: a certificate is a bound, or none is told."""

from functools import cache

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, principal_angles
from tests.harness import fit

CERTIFIED = [
    ("p-cov", {}),
    ("sub-it", {}),
    ("sub-it", {"acceleration": "none"}),
    ("compressed", {"corrections": 2, "bits": 8}),
    ("compressed", {"tolerance": 1e-6, "bits": 21}),
    ("streaming", {}),
    ("vertical", {"center": True}),
    ("vertical", {"scale": True}),
    ("vertical", {"solver": "gram"}),
]
IN_CLEAR = [
    ("qr-pca", {"rank": 3}),
    ("sub-it", {"warm_start": "svd", "wire": "float32"}),
    ("compressed", {"codec": "low-rank", "tolerance": 1e-6}),
    ("compressed", {"codec": "shared-step"}),
    ("spca", {"tracked": 7}),
    ("adaptive", {}),
    ("vertical", {"solver": "merge"}),
]
RUNS = [(*run, "clear") for run in CERTIFIED + IN_CLEAR] + [(*run, "secure") for run in CERTIFIED]
OFFSETS = [1e4, 1e8, 1e10, 1e12, 1e13, 1e15]
UNITS = [2.0**-266, 2.0**-133, 2.0**133, 2.0**266]
ROUNDING = 3e-13
"""Degrees: of the reference, and of comparing with it."""


@cache
def ladder():
    """Return the rows of every rung by name."""
    rng = np.random.default_rng(4)
    near, towards = rng.normal(size=(60, 7)) * np.linspace(3, 1, 7), rng.normal(size=7)
    rungs = {f"{offset:.0e} deviations": near + offset * towards for offset in OFFSETS}
    rungs |= {f"units of {unit:.0e}": unit * (near + 1e8 * towards) for unit in UNITS}
    return rungs


def axes(X, *, scale):
    """Return the axes of the rows' ellipsoid, as unit scores and components, from the centred rows in 80 bits.

    A mean in 80 bits is rounded too: rows about it are still 3e-6 degrees off at 1e13, and are centred a second time.
    """
    centred = X.astype(np.longdouble) / np.longdouble(2.0 ** np.frexp(np.abs(X).max())[1])  # exactly
    for _ in range(2):
        centred = centred - centred.mean(axis=0)
    centred = centred / np.sqrt((centred**2).mean(axis=0)) if scale else centred
    U, _, Vt = np.linalg.svd((centred / np.abs(centred).max()).astype(np.float64), full_matrices=False)
    return U[:, :2], Vt[:2].T


@pytest.mark.engine
@pytest.mark.parametrize(("method", "options", "way"), RUNS, ids=str)
def test_a_certificate_bounds_the_angle_on_every_rung(method, options, way):
    certified = 0
    for name, X in ladder().items():
        scores, components = axes(X, scale=options.get("scale", False))
        sums = {"secure_aggregation": True, "bound": 1.01 * float(np.abs(X).max())} if way == "secure" else {}
        columns = method == "vertical"
        parties = np.split(X, [2, 5], axis=1) if columns else np.split(X, [25, 45])
        try:
            model = fit(method, parties, n_components=2, **options, **sums)
        except ConfigError:  # it says what no run can resolve, and blames no party
            continue
        measured = model.log["measured"]
        bound = measured.get("certified_angle_degrees", measured.get("angle_bound_degrees", 90.0))
        bound = min(bound, EXACT_ANGLE_DEGREES) if model.log["exact"] else bound
        certified += bound < 90
        fitted, expected = (model.scores_, scores) if columns else (model.components_.T, components)
        assert principal_angles(fitted, expected).max() <= bound + ROUNDING, name
    assert certified or method == "qr-pca"

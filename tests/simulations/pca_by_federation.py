"""A plugin of pytest that runs scikit-learn's own tests of PCA with `FederatedPCA`.

Only the constructor is mapped::

    pytest -p tests.simulations.pca_by_federation --pyargs sklearn.decomposition.tests.test_pca
"""

from sklearn.decomposition.tests import test_pca

from fedpca_flwr import FederatedPCA


class PCA(FederatedPCA):
    """`FederatedPCA` with the parameters of scikit-learn's PCA, of which those of a solver mean nothing here."""

    def __init__(
        self,
        n_components=None,
        *,
        copy=True,
        whiten=False,
        svd_solver="auto",
        tol=0.0,
        iterated_power="auto",
        n_oversamples=10,
        power_iteration_normalizer="auto",
        random_state=None,
    ):
        super().__init__(n_components, whiten=whiten)
        solver = {"copy": copy, "svd_solver": svd_solver, "tol": tol, "iterated_power": iterated_power}
        sketch = {"n_oversamples": n_oversamples, "power_iteration_normalizer": power_iteration_normalizer}
        self.__dict__.update(solver, **sketch, random_state=random_state)


test_pca.PCA = PCA

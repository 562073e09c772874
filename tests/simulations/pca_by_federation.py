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
        self.copy = copy
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state


test_pca.PCA = PCA

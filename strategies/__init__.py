"""Registry of the methods: each has a module or a folder, and a line in `METHODS`."""

from fedpca_flwr.protocol.registry import Registry
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.stages import compose
from fedpca_flwr.strategies.factory import RunFactory

METHODS = Registry(
    "fedpca_flwr.strategies",
    {
        "p-cov": "pooled_covariance:PooledCovariance",
        "ap-cov": "approximate_covariance:ApproximateCovariance",
        "sub-it": "subspace_iteration:SubspaceIteration",
        "qr-pca": "qr_pca:QRPCA",
        "ap-stack": "approximate_stack:ApproximateStack",
        "compressed": "compressed.method:Compressed",
        "adaptive": "adaptive:Adaptive",
        "em": "em.method:EM",
        "dsa": "dsa:DSA",
        "fast-pca": "fast_pca:FastPCA",
        "streaming": "streaming.method:Streaming",
        "dp-pca": "dp_pca.method:DPPCA",
        "personalised": "personalised.method:Personalised",
        "robust": "robust.method:Robust",
        "spca": "sapca.method:SPCA",
        "sapca": "sapca.method:SAPCA",
        "vertical": "vertical:Vertical",
        "vertical-scores": "vertical_scores:VerticalScores",
        "vfedpca": "vfedpca:VFedPCA",
        "vfedakpca": "vfedakpca:VFedAKPCA",
    },
    compose,
)
"""Strategy class by method name. The registry imports a method's module when the method is first used."""

FACTORY = RunFactory(METHODS)
PCAStrategy.factory = FACTORY

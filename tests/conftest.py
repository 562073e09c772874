"""One BLAS thread for each process of the tests: pytest has a worker for each core, and more threads only wait."""

import os

from threadpoolctl import threadpool_limits

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the processes that tests start


def pytest_configure() -> None:
    import scipy.linalg  # noqa: F401  # its BLAS is limited only when it is there

    threadpool_limits(1, user_api="blas")

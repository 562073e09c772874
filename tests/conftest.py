"""One BLAS thread for each process of the tests, and with `-n auto` one process more than there are cores.

More threads would only wait for each other; tests of deployments, databases and journals wait for processes and disks.
"""

import os

import pytest
from threadpoolctl import threadpool_limits

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # of the processes that tests start


def pytest_configure() -> None:
    import scipy.linalg  # noqa: F401  # its BLAS is limited only when it is there

    threadpool_limits(1, user_api="blas")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return (os.cpu_count() or 1) + 1

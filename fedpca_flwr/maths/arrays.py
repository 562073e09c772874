"""The array type of the package's signatures."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # double precision; its shape stands in the docstring of what takes or returns it

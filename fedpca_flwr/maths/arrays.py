"""What an array of numbers is called in signatures."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # double precision; its shape stands in the docstring of what takes or returns it

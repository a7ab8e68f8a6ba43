"""Types of the arrays of probes. They do not need torch, so that a report is shown without it."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[np.floating]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

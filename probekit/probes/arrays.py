"""Types of the arrays of probes. They do not need torch, so that a report is shown without it."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from probekit.lazy_rows import Features as Features
from probekit.lazy_rows import LazyRows

Floats = NDArray[np.float64]
Rows: TypeAlias = Features | LazyRows
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

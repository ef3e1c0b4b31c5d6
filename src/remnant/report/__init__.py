"""Pictures of a finding. Each figure's data is computed by one function and drawn by another.

Here matplotlib is imported, whatever MPLBACKEND asks for: its import fails where that names a
backend that does not exist. Our figures are drawn by Agg and go into files.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if "matplotlib" not in sys.modules:
    asked = os.environ.pop("MPLBACKEND", None)
    import matplotlib

    if asked is not None:  # a notebook's own figures go where it wants them
        os.environ["MPLBACKEND"] = asked
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = asked

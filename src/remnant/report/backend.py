"""matplotlib, whatever MPLBACKEND asks for: our figures are drawn by Agg and go into files.

Its import fails where that variable names a backend that does not exist.
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

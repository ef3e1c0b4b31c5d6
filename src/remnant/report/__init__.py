"""Pictures of a finding. Each figure's data is computed by one function and drawn by another."""

from remnant.report import backend as _backend  # noqa: F401  before matplotlib
from remnant.report.curve import (
    Series,
    Spectrum,
    curve_data,
    draw_curve,
    draw_spectrum,
    spectrum_data,
)
from remnant.report.sheet import (
    Layout,
    candidates_sheet,
    draw_sheet,
    drawable,
    finding_sheet,
    sheet_layout,
)

__all__ = [
    "Layout",
    "Series",
    "Spectrum",
    "candidates_sheet",
    "curve_data",
    "draw_curve",
    "draw_sheet",
    "draw_spectrum",
    "drawable",
    "finding_sheet",
    "sheet_layout",
    "spectrum_data",
]

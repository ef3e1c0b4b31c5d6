"""Pictures of a finding. Each figure's data is computed by one function and drawn by another."""

from remnant.report import backend as _backend  # noqa: F401  before matplotlib
from remnant.report.charts import curve_chart, spectrum_chart, svg_file
from remnant.report.figures import curve_data, spectrum_data
from remnant.report.sheet import candidates_sheet, draw_sheet, drawable, finding_sheet

__all__ = [
    "candidates_sheet",
    "curve_chart",
    "curve_data",
    "draw_sheet",
    "drawable",
    "finding_sheet",
    "spectrum_chart",
    "spectrum_data",
    "svg_file",
]

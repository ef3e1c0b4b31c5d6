"""The studies by name: a declaration file for each paper, and the table of defences."""

from __future__ import annotations

from collections.abc import Mapping

from remnant.experiments import batches, defences, paper_000, paper_001, paper_002, paper_004
from remnant.experiments.study import Study

STUDIES: Mapping[str, Study] = {
    **paper_002.STUDIES,
    **batches.STUDIES,
    **paper_000.STUDIES,
    **paper_001.STUDIES,
    **paper_004.STUDIES,
    "defences": defences.STUDY,
}

"""The audit: preflight, attack, control, score, verdict. Target and truth meet only here."""

from remnant.auditing.api import audit
from remnant.auditing.assess import assess, without_truth
from remnant.auditing.case import Case
from remnant.auditing.playing import Plan
from remnant.auditing.preflight import preflight

__all__ = ["Case", "Plan", "assess", "audit", "preflight", "without_truth"]

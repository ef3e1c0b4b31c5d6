"""Files that came from anywhere: types, lengths and totals are checked before anything is made.

Every reader of data, weights, coefficients and recipes goes through here. Nothing in a file is
run, no value out of a file is formatted whole, and all that one file makes in memory is counted
in one budget, so that a small file cannot fill the machine.
"""

from __future__ import annotations

from remnant.untrusted.archives import archive_of, member_bytes, read_array
from remnant.untrusted.files import (
    JSON_LIMIT,
    Budget,
    check_file,
    file_bytes,
    json_file,
    reading,
    shown,
)
from remnant.untrusted.pickles import Foreign, pickled

__all__ = [
    "JSON_LIMIT",
    "Budget",
    "Foreign",
    "archive_of",
    "check_file",
    "file_bytes",
    "json_file",
    "member_bytes",
    "pickled",
    "read_array",
    "reading",
    "shown",
]

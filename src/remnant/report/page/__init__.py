"""An audit's page: one HTML file, drawn from the bundle alone and never computed again.

`files` reads and writes the bundle, `facts` says what is on the page, `charts` and `sections` draw
that, `document` puts it together.
"""

from remnant.report.page.document import PAGE_FILE, page, write_page
from remnant.report.page.files import (
    ORIGINALS_FILE,
    Pictures,
    read_bundle,
    redact,
    without_images,
    write_bundle,
)

__all__ = [
    "ORIGINALS_FILE",
    "PAGE_FILE",
    "Pictures",
    "page",
    "read_bundle",
    "redact",
    "without_images",
    "write_bundle",
    "write_page",
]

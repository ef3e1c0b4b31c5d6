"""An audit's page: one HTML file, drawn from the bundle alone and never computed again.

`files` reads and writes the bundle, `facts` says what is on the page, `templates` lay it out and
`document` puts it together.
"""

from remnant.report.page.document import PAGE_FILE, page, write_page
from remnant.report.page.files import Pictures, read_bundle, redact, without_images, write_bundle

__all__ = [
    "PAGE_FILE",
    "Pictures",
    "page",
    "read_bundle",
    "redact",
    "without_images",
    "write_bundle",
    "write_page",
]

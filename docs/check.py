"""Check the docs without network: relative links and their anchors, and the page made from code.

Also that files and functions named in CONTRIBUTING exist. python docs/check.py: one line for each
fault, exit code 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from reference import page

DOCS = Path(__file__).resolve().parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST_WORDS = 12_000  # of all user pages; research pages are not counted


def anchors(text: str) -> set[str]:
    """What `#...` may name in a page: its headings, in the form that GitHub gives them."""
    headings = [line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def broken_links(path: Path) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of one."""
    faults = []
    for link in LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        there = path.parent / name if name else path
        if not there.exists():
            faults.append(f"{path.relative_to(DOCS.parent)}: no file {link}")
        elif anchor and anchor not in anchors(there.read_text()):
            faults.append(f"{path.relative_to(DOCS.parent)}: no heading {link}")
    return faults


def lost_names(text: str) -> list[str]:
    """Files that CONTRIBUTING names and that are not there, and functions of its walks."""
    root = DOCS.parent
    files = [path for part in ("src", "tests", "docs") for path in (root / part).rglob("*.py")]
    there = [f"/{path.relative_to(root).as_posix()}" for path in files]
    code = "".join(path.read_text() for path in files)
    walks = text.partition("## Three commands")[2].partition("\n## ")[0]
    lost = [
        name
        for name in re.findall(r"`([\w/]+\.py)`", text)
        if not name.endswith("yours.py") and not any(path.endswith(f"/{name}") for path in there)
    ]
    called = re.findall(r"\(`(\w+)`|`(\w+)`\)", walks)
    return lost + [
        name
        for pair in called
        for name in pair
        if name
        and not (root / "src" / "remnant" / name).is_dir()
        and not re.search(rf"(def|class) {name}\b", code)
    ]


def main() -> int:
    """Print what is wrong; how many words user pages have is said either way."""
    pages = [*DOCS.parent.glob("*.md"), *sorted(DOCS.rglob("*.md"))]
    faults = [fault for path in pages for fault in broken_links(path)]
    nav = (DOCS.parent / "mkdocs.yml").read_text()
    named = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    faults += [f"mkdocs.yml: no {name} in nav" for name in sorted(named) if name not in nav]
    names = lost_names((DOCS.parent / "CONTRIBUTING.md").read_text())
    faults += [f"CONTRIBUTING.md: nothing is called {name}" for name in names]
    if (DOCS / "reference.md").read_text() != page():
        faults.append("docs/reference.md: not what the code says; run python docs/reference.py")
    words = sum(len(path.read_text().split()) for path in DOCS.glob("*.md"))
    if words >= MOST_WORDS:
        faults.append(f"docs: expected fewer than {MOST_WORDS} words of user pages, got {words}")
    print(*faults, f"{len(pages)} pages, {words} words for users", sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

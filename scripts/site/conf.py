"""The documentation as a site: Sphinx reads the Markdown files where they are. `make site` runs it.

Every warning is an error: a link to a page, heading or file that does not exist, and a page that docs/README.md and
README.md do not lead to.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Fulmar"
version = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"))[1]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/*.md", "docs/reference/*.md", "docs/studies/*.md", "crates/README.md", "crates/*/README.md", "firmware/core/README.md"]
extensions = ["myst_parser"]
nitpicky = True

# Headings are linked to as GitHub does it.
myst_heading_anchors = 5
myst_links_external_new_tab = False
# A page may begin at any level, and a block may be of a language nobody highlights.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

html_theme = "alabaster"
html_title = f"Fulmar {version}"
html_theme_options = {"description": "MQTT for bad networks", "fixed_sidebar": True, "page_width": "72rem"}
html_show_sourcelink = False
html_copy_source = False

# What the list at the left has, in order; the headings are those of the tables in docs/README.md.
ABOUT = ["README", "ROADMAP", "CHANGELOG", "CONTRIBUTING", "TESTING", "ARCHITECTURE", "SECURITY", "crates/README"]


def contents(app, name, source):
    """Behind the front page, which people read on GitHub too: the list of all pages, hidden in the text."""
    if name != root_doc:
        return
    found = app.env.found_docs - {root_doc}
    groups = {
        "Guides": sorted(page for page in found if re.fullmatch(r"docs/[^/]*", page)),
        "Studies": sorted(page for page in found if page.startswith("docs/studies/")),
        "Reference": sorted(page for page in found if page.startswith("docs/reference/")),
        "Libraries": sorted(page for page in found if page.startswith(("crates/", "firmware/")) and page not in ABOUT),
        "Project": [page for page in ABOUT if page in found],
    }
    assert sum(map(len, groups.values())) == len(found), "a page is in no group"
    for caption, pages in groups.items():
        lines = "\n".join(f"/{page}" for page in pages)
        if pages:
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n:maxdepth: 1\n\n{lines}\n```\n"


def front(app, failed):
    """A site begins with index.html."""
    if failed is None:
        page = '<!doctype html><meta charset="utf-8"><title>Fulmar</title><meta http-equiv="refresh" content="0; url=docs/README.html">'
        pathlib.Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app):
    app.connect("source-read", contents)
    app.connect("build-finished", front)

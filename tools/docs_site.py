"""Hooks of the documentation site, which mkdocs.yml names, for features that MkDocs and its plugins lack.

The pages can be read in a checkout too. There a link may lead to a source file, and CONTRIBUTING.md and CHANGELOG.md
are at the top. On the site the source file has a page of the API reference, and both files are pages.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
TOP = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages at the top of a checkout
BOARDS = "<!-- boards -->"  # replaced by the pages of all boards
OUTSIDE = re.compile(r"\]\((?:\.\./)+(?:src/(?P<module>fedweave/[\w/]+)\.py|(?P<top>[A-Z]+\.md))")
EXTERNAL = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*\brel=[\"']?stylesheet[^>]*//"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder of `docs` in the navigation is replaced by its pages: README.md first, then by name."""
    config.nav = [_section(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the checkout."""
    for name in TOP:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other in TOP:
            text = text.replace(f"]({other}", f"]({other.lower()}")
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to source files to the reference, and links to files at the top of the checkout to their pages.

    The mark of boards is replaced by their pages.
    """
    folder = posixpath.dirname(page.file.src_uri) or "."
    if BOARDS in markdown:
        markdown = markdown.replace(BOARDS, show_boards(ROOT / "examples"))

    def replace_link(link: re.Match[str]) -> str:
        module = (link["module"] or "").replace("__init__", "index")
        return "](" + posixpath.relpath(f"reference/{module}.md" if module else link["top"].lower(), folder)

    return OUTSIDE.sub(replace_link, markdown)


def show_boards(folder: Path) -> str:
    """The pages of the boards below a folder, with headings two levels lower."""
    pages = [file.with_name("README.md") for file in sorted(folder.rglob("board.yaml"))]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    return "\n".join(re.sub(r"^#", "###", text, flags=re.MULTILINE) for text in texts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from another host."""
    if element := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri}: loads {element[0]!r} from elsewhere; make it a part of the site")
    return output


def _section(entry: Any) -> Any:
    """An entry of the navigation. A folder is replaced by its pages, also inside a section."""
    [(title, place)] = entry.items() if isinstance(entry, dict) else [("", entry)]
    if isinstance(place, list):
        return {title: [_section(inner) for inner in place]}
    if not (isinstance(place, str) and place.endswith("/") and (ROOT / "docs" / place).is_dir()):
        return entry
    pages = sorted((ROOT / "docs" / place).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return {title: [place + page.name for page in pages]}

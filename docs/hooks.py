"""MkDocs: pages that stand elsewhere in the repository, and links between them, as they read on GitHub."""

import re
import tomllib
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
NOTEBOOKS = sorted((ROOT / "simulations" / "notebooks").glob("*.ipynb"))
ELSEWHERE = {
    "index.md": "README.md",
    "deployment.md": "simulations/deployment/README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{f"gallery/{path.stem}.md": f"simulations/notebooks/{path.name}" for path in NOTEBOOKS},
}
"""Page of the site, and the file of the repository that it is."""
MADE = ("methods/", "methods.md", "measurements.md", "published.md", "security/questions.md")
PAGES = {source: page for page, source in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The gallery has every notebook there is, and the methods every page."""
    found = {
        "Gallery": [page for page in ELSEWHERE if page.startswith("gallery/")],
        "Methods": [f"methods/{path.name}" for path in (ROOT / "docs" / "methods").glob("*.md")],
    }
    for section in config.nav or []:
        for title in found.keys() & section:
            section[title] = sorted(found[title])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in ELSEWHERE.items():
        if source.endswith(".md"):
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in NOTEBOOKS:
        for name, content in _told(notebook).items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    return files


def _told(notebook: Path) -> dict[str, str | bytes]:
    """A page and its figures, by name."""
    cells = nbformat.read(notebook, as_version=4)
    names = {"unique_key": notebook.stem, "output_files_dir": notebook.stem}
    body, made = MarkdownExporter().from_notebook_node(cells, names)
    return {f"{notebook.stem}.md": body, **made["outputs"]}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links lead to the page that a file has become; to code, which has no page, they become plain text.

    A page that the code makes has no link to edit it.
    """
    own = page.file.src_uri
    source = ELSEWHERE.get(own, f"docs/{own}")
    folder = (ROOT / source).parent
    page.edit_url = None if own.startswith(MADE) else f"{REPOSITORY}/edit/main/{source}"
    back = "../" * own.count("/")

    def linked(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target or (found[1] and own.startswith("gallery/")):  # a figure lies beside its page
            return found[0]
        path = (folder / target).resolve().relative_to(ROOT).as_posix()
        to = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"{image}[{text}]({back}{to}{anchor})" if to else text

    return LINK.sub(linked, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The corner of a table is a cell: a screen reader announces a head without text."""
    return re.sub(r"<th[^>]*></th>", "<td></td>", html)

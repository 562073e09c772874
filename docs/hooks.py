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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
MADE = ("call-path.md", "methods/", "methods.md", "measurements.md", "security/questions.md")
PAGES = {source: page for page, source in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add every notebook to the menu."""
    for section in config.nav or []:
        if "Notebooks" in section:
            section["Notebooks"] = [page for page in ELSEWHERE if page.startswith("gallery/")]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside the folder `docs`, and the notebooks with their figures, to the site."""
    for page, source in ELSEWHERE.items():
        if source.endswith(".md"):
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in NOTEBOOKS:
        for name, content in _rendered(notebook).items():
            files.append(File.generated(config, f"gallery/{name}", content=content))
    return files


def _rendered(notebook: Path) -> dict[str, str | bytes]:
    """Convert a notebook to Markdown; return the page and its figures by file name."""
    cells = nbformat.read(notebook, as_version=4)
    names = {"unique_key": notebook.stem, "output_files_dir": notebook.stem}
    body, resources = MarkdownExporter().from_notebook_node(cells, names)
    return {f"{notebook.stem}.md": body, **resources["outputs"]}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite a page's links to files of the repository as links to the site's pages.

    Links to code, which has no page, become plain text. A page that the code makes has no link to edit it, and none has
    one before the metadata name a repository.
    """
    name = page.file.src_uri
    source = ELSEWHERE.get(name, f"docs/{name}")
    folder = (ROOT / source).parent
    if name.startswith(MADE) or "urls" not in PROJECT:
        page.edit_url = None
    else:
        page.edit_url = f"{PROJECT['urls']['Repository']}/edit/main/{source}"
    back = "../" * name.count("/")

    def link(match: re.Match[str]) -> str:
        """Return a link to the target's page, or only the text if the target has no page."""
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in target or (match[1] and name.startswith("gallery/")):  # a figure lies beside its page
            return match[0]
        path = (folder / target).resolve().relative_to(ROOT).as_posix()
        to = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"{image}[{text}]({back}{to}{anchor})" if to else text

    if name == "api.md":  # each class of a method, which the page names, with its signature
        markdown = re.sub(r"^The classes: .*?\.$", _class_blocks, markdown, flags=re.M | re.S)
    return LINK.sub(link, markdown)


def _class_blocks(match: re.Match[str]) -> str:
    """Return a block of mkdocstrings for each class that a sentence names."""
    names = re.findall(r"`(\w+)`", match[0])
    return "\n\n".join(f"::: fedpca_flwr.{name}\n    options: {{members: false}}" for name in names)


def on_page_content(html: str, **_: Any) -> str:
    """Replace empty header cells, which screen readers announce, and let phones break long names in cells."""
    html = re.sub(r"<td>(<code>[^<]*</code>,? ?)+", lambda cell: cell[0].replace("_", "_<wbr>"), html)
    return re.sub(r"<th[^>]*></th>", "<td></td>", html)

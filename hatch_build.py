"""Gives the wheel and the source archive the README with absolute links, which a package index can follow."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
"""A link or a picture (with ``!``) of Markdown whose target is a path in the repository."""


class ReadmeHook(MetadataHookInterface):
    """Reads README.md, whose links are relative to the repository; the address and the version make them absolute."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = metadata["urls"]["Repository"], f"v{metadata['version']}"
        pages = f"{repository}/blob/{tag}"
        pictures = f"{repository.replace('//github.com/', '//raw.githubusercontent.com/')}/{tag}"

        def absolute(found: re.Match[str]) -> str:
            picture, text, target = found.groups()
            return f"{picture}[{text}]({pictures if picture else pages}/{target})"

        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": RELATIVE.sub(absolute, text)}

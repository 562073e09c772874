"""Give the wheel and the source archive the README with absolute links, once the metadata name a repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
"""A link or a picture (with ``!``) of Markdown whose target is a path in the repository."""


class ReadmeHook(MetadataHookInterface):
    """Build hook that makes the README's relative links absolute, for the package's page on an index."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README of the package's metadata, with absolute links where ``Repository`` is among its addresses.

        Parameters
        ----------
        metadata : dict
            Metadata of the project, which is changed in place.
        """
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if "urls" not in metadata:
            return
        repository, tag = metadata["urls"]["Repository"], f"v{metadata['version']}"
        pages = f"{repository}/blob/{tag}"
        pictures = f"{repository.replace('//github.com/', '//raw.githubusercontent.com/')}/{tag}"

        def absolute(match: re.Match[str]) -> str:
            """Return a link or picture with its absolute address."""
            picture, text, target = match.groups()
            return f"{picture}[{text}]({pictures if picture else pages}/{target})"

        metadata["readme"]["text"] = RELATIVE.sub(absolute, text)

"""The page on the package index: the README with links that hold there, and the project's addresses.

Relative links lead nowhere on the page of a package. With `repository` in pyproject.toml they lead to the
files of this version in the repository; as long as it is empty they are plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^]\[]*(?:\[[^]]*\][^]\[]*)*)\]\((?!https?://|#)([^)\s]+)\)")


def readme_for_index(text: str, repository: str, version: str) -> str:
    """Return the README with absolute links, or without relative ones where there is no repository."""

    def absolute(link: re.Match[str]) -> str:
        mark, words, path = link.groups()
        if not repository:
            return "" if mark else words
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({repository}/{kind}/v{version}/{path})"

    return _LINK.sub(absolute, text)


def addresses(repository: str, version: str) -> dict[str, str]:
    """Return the table of addresses that the index shows beside the package."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/v{version}/docs",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class CustomMetadataHook(MetadataHookInterface):
    """Gives hatchling what pyproject.toml cannot say."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description and the addresses."""
        repository, version = self.config["repository"].rstrip("/"), metadata["version"]
        text = (Path(self.root) / "README.md").read_text("utf-8")
        shown = readme_for_index(text, repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
        metadata["urls"] = addresses(repository, version)

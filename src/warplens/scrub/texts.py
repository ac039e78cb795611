"""Texts without what identifies: paths become `[path 1]`, `[path 2]`, …, names and addresses `[removed]`."""

from __future__ import annotations

import re

from warplens.scrub_secrets import ADDRESSES, PATHS, Secrets

__all__ = ["MARK", "REMOVED", "Cleaner"]

REMOVED = b"[removed]"
#: What stands in a text in place of what was removed.
MARK = re.compile(r"\[(?:path \d+|removed)\]")

#: The folders of a Python function's file, `/home/ann/project/train.py(12): main`; those of installed packages apart,
#: below which the path says which function of which library it is.
_FOLDERS = re.compile(rb"\A\s*(?:(?:[A-Za-z]:)?[/\\]|\.\.?[/\\]|~).*[/\\]", re.DOTALL)
_INSTALLED = re.compile(rb".*[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]", re.DOTALL)


class Cleaner:
    """Rewrites texts, the same text always in the same way, and counts.

    Args:
        secrets: names and values to remove.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._paths: dict[bytes, bytes] = {}
        self._texts: dict[str, dict[bytes, bytes]] = {}

    def written(self, place: str, text: bytes) -> bytes:
        """A text that people wrote, without paths, addresses and secrets."""
        known = self._texts.setdefault(place, {})
        if text not in known:
            clean = ADDRESSES.sub(REMOVED, PATHS.sub(self._numbered, text))
            known[text] = self._without_secrets(clean)
        return known[text]

    def function(self, place: str, text: bytes) -> bytes:
        """The name of a function, without paths. A compiler wrote it: an equal user name in it means nothing."""
        known = self._texts.setdefault(place, {})
        if text not in known:
            known[text] = PATHS.sub(self._numbered, text)
        return known[text]

    def python(self, place: str, text: bytes) -> bytes:
        """Names of Python functions: of their files' folders only those stay that an installed library has."""
        known = self._texts.setdefault(place, {})
        if text not in known:
            short = b";".join(_FOLDERS.sub(self._without_folders, frame) for frame in text.split(b";"))
            clean = ADDRESSES.sub(REMOVED, PATHS.sub(self._numbered, short))
            known[text] = self._without_secrets(clean)
        return known[text]

    def rewritten(self) -> dict[str, int]:
        """How many different texts of each place were rewritten."""
        counts = {place: sum(old != new for old, new in texts.items()) for place, texts in self._texts.items()}
        return {place: count for place, count in counts.items() if count}

    def results(self, *kinds: str) -> list[bytes]:
        """All texts of these places as they came out, each once; of all places where none is named."""
        return [new for place in kinds or self._texts for new in set(self._texts.get(place, {}).values())]

    def _without_secrets(self, text: bytes) -> bytes:
        return self._secrets.pattern.sub(REMOVED, text) if self._secrets.pattern else text

    def _without_folders(self, found: re.Match[bytes]) -> bytes:
        folders = found.group()
        if installed := _INSTALLED.match(folders):
            return folders[installed.end() :]
        return self._number(folders) + folders[-1:]

    def _numbered(self, path: re.Match[bytes]) -> bytes:
        return self._number(path.group())

    def _number(self, path: bytes) -> bytes:
        """A number for each different path: ranges whose names differ by a path stay different."""
        return self._paths.setdefault(path, b"[path %d]" % (len(self._paths) + 1))

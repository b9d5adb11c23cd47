"""Keeps secrets out of everything that trainbox itself writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trainbox.values import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

STARS = "******"

WORDS = ("SECRET", "PASSWORD", "PASSWD", "KEY", "TOKEN", "PRIVATE", "CREDS", "CREDENTIAL")
"""A name that holds one of these, in whatever case, names a secret."""

# Shorter values would turn half of a log into stars.
_SHORTEST = 4

_URL_CREDENTIALS = r"(?<=://)[^/\s@'\"]+(?=@)"


def mask_urls(text: str) -> str:
    """Text with the `user:password@` of every URL masked."""
    return re.sub(_URL_CREDENTIALS, STARS, text) if "://" in text else text


class Mask:
    """Replaces the secrets of one job in text.

    words: further words that mark a name as that of a secret (setting TRAINBOX_SECRETS).
    """

    def __init__(self, *sources: Mapping[str, Any], words: Iterable[str] = ()) -> None:
        self._words = WORDS + tuple(word.upper() for word in words)
        found: set[str] = set()
        for source in sources:
            self._collect(source, found)
        values = sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, values))) if values else None

    def hides(self, name: str) -> bool:
        """Whether a variable or hyperparameter of this name is a secret."""
        upper = name.upper()
        return any(word in upper for word in self._words)

    def _collect(self, value: Any, found: set[str], secret: bool = False) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                self._collect(item, found, secret or self.hides(str(key)))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._collect(item, found, secret)
        elif secret and isinstance(value, str):
            found.add(value)

    def text(self, text: str) -> str:
        """`text` without secret values and without credentials in URLs."""
        if self._pattern:
            text = self._pattern.sub(STARS, text)
        return mask_urls(text)

    def value(self, name: str, value: str) -> str:
        """The value of `name`, or stars when its name says that it is secret."""
        return STARS if value and self.hides(name) else self.text(value)

"""Regular expressions that cost nothing until they are used: a program asks for few of those that it knows."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Lazy:
    def __init__(self, text: Any, flags: int) -> None:
        self._stated = (text, flags)

    def __getattr__(self, name: str) -> Any:
        # Only names that are not there yet come here; the next use of a method finds it as an attribute.
        value = self.__dict__[name] = getattr(re.compile(*self._stated), name)
        return value


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, compiled when a method of it is first asked for.

    Compiling the hundred patterns that classify names takes longer than reading a small profile.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(text, flags))

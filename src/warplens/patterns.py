"""Regular expressions that are compiled on first use: a program needs few of those it defines."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Lazy:
    def __init__(self, text: Any, flags: int) -> None:
        self._stated = (text, flags)

    def __getattr__(self, name: str) -> Any:
        # Only called for missing names; the next use of a method finds it as an attribute.
        value = self.__dict__[name] = getattr(re.compile(*self._stated), name)
        return value


def lazy_pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but compiled when a method of it is first used.

    Compiling the hundred patterns that classify names takes longer than reading a small profile.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(text, flags))

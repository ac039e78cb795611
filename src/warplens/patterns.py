"""Regular expressions that are compiled on first use, because a program needs few of those it defines; numbers."""

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


#: A number as people write it. Python's own converters also take `1_0` and digits of other scripts.
NUMBER = lazy_pattern(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)

"""What a program of the suite is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AFTER",
    "BEFORE",
    "EIGHTEENTH",
    "EIGHTH",
    "ELEVENTH",
    "FIFTEENTH",
    "FIFTH",
    "FOURTEENTH",
    "FOURTH",
    "HALVES",
    "NINETEENTH",
    "NINTH",
    "PROGRAMS",
    "SEVENTEENTH",
    "SEVENTH",
    "SEVERAL",
    "SIXTEENTH",
    "SIXTH",
    "TENTH",
    "THIRTEENTH",
    "THIRTIETH",
    "THIRTY_EIGHTH",
    "THIRTY_FIFTH",
    "THIRTY_FIRST",
    "THIRTY_FOURTH",
    "THIRTY_NINTH",
    "THIRTY_SECOND",
    "THIRTY_SEVENTH",
    "THIRTY_SIXTH",
    "THIRTY_THIRD",
    "TWELFTH",
    "TWENTIETH",
    "TWENTY_EIGHTH",
    "TWENTY_FIFTH",
    "TWENTY_FIRST",
    "TWENTY_FOURTH",
    "TWENTY_NINTH",
    "TWENTY_SECOND",
    "TWENTY_SEVENTH",
    "TWENTY_SIXTH",
    "TWENTY_THIRD",
    "Build",
    "Program",
    "Step",
    "healthy",
    "mends",
    "pair",
    "several",
]

Step = Callable[[], object]
Build = Callable[[str], Step]

BEFORE, AFTER = "before", "after"
#: What is held out was written apart from the rules of the diagnosis, and published when they stood. The third part was
#: recorded when the rules had been mended with the second in view, and each later one when they had been with its
#: predecessor. The tenth and the eleventh were written together and split at random, as were the twelfth and the
#: thirteenth, the fourteenth and the fifteenth, the sixteenth and the seventeenth, the eighteenth and the
#: nineteenth, and the twentieth and the twenty-first.
HALVES = (
    "development", "held_out", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth", "twenty_first", "twenty_second", "twenty_third", "twenty_fourth",
    "twenty_fifth", "twenty_sixth", "twenty_seventh", "twenty_eighth",
    "twenty_ninth", "thirtieth", "thirty_first", "thirty_second", "thirty_third", "thirty_fourth",
    "thirty_fifth", "thirty_sixth", "thirty_seventh", "thirty_eighth", "thirty_ninth",
)  # fmt: skip
DEVELOPMENT, HELD_OUT, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH = HALVES[:9]
TENTH, ELEVENTH, TWELFTH, THIRTEENTH, FOURTEENTH, FIFTEENTH, SIXTEENTH, SEVENTEENTH = HALVES[9:17]
EIGHTEENTH, NINETEENTH, TWENTIETH, TWENTY_FIRST, TWENTY_SECOND, TWENTY_THIRD, TWENTY_FOURTH = HALVES[17:24]
TWENTY_FIFTH, TWENTY_SIXTH, TWENTY_SEVENTH, TWENTY_EIGHTH, TWENTY_NINTH, THIRTIETH = HALVES[24:30]
THIRTY_FIRST, THIRTY_SECOND, THIRTY_THIRD, THIRTY_FOURTH, THIRTY_FIFTH, THIRTY_SIXTH = HALVES[30:36]
THIRTY_SEVENTH, THIRTY_EIGHTH, THIRTY_NINTH = HALVES[36:39]

#: Programs with several habits, which are no half: they show whether causes are ranked, and how their remedies add up.
SEVERAL = "several"

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """One program of the suite.

    Attributes:
        name: the function's name.
        half: of `HALVES`.
        family: what kind of program it is: training, prefill, decoding, vision, …
        habit: the finding (its id) that names the habit; "" for a program in which nothing is to be mended.
        change: what the variant `after` changes, in one line.
        build: makes one step of a variant; everything before the first step happens in here.
        accept: other findings that name the habit rightly, too; the docstring says why.
        work: units of work a step does in each variant, where they differ.
        also_after: whether `after` is recorded by nsys, too.
        ranges: whether each step has a range ("step").
        profiler_steps: whether torch.profiler's own step ranges are used instead.
        with_stack: whether torch.profiler records Python frames.
        steps: recorded by nsys, and by torch.profiler.
        inference: whether steps run without gradients.
        compiles: whether a variant is compiled (such programs are run once beforehand, so that compilers are done).
        library: where the model comes from.
        fixes: of a program with several habits, what each variant of this name mends alone; `after` mends all.
        what: the function's docstring.
    """

    name: str
    half: str
    family: str
    habit: str
    change: str
    build: Build
    accept: tuple[str, ...] = ()
    work: dict[str, int] = field(default_factory=dict)
    also_after: bool = False
    ranges: bool = True
    profiler_steps: bool = False
    with_stack: bool = False
    steps: tuple[int, int] = (6, 3)
    inference: bool = False
    compiles: bool = False
    library: str = "torch"
    fixes: dict[str, str] = field(default_factory=dict)
    what: str = ""

    @property
    def variants(self) -> tuple[str, ...]:
        """A healthy program has one variant, a program with several habits one for each fix and one with all."""
        return (BEFORE, *self.fixes, AFTER) if self.habit or self.fixes else (BEFORE,)

    def described(self) -> dict[str, Any]:
        """Everything but the code."""
        return {key: value for key, value in vars(self).items() if key != "build"}


def pair(habit: str, family: str, change: str, half: str = DEVELOPMENT, **settings: Any) -> Callable[[Build], Build]:
    """Registers a pair; the function's docstring says what the program does."""

    def register(build: Build) -> Build:
        name = build.__name__
        if name in PROGRAMS:
            raise ValueError(f"two programs are called {name}")
        what = " ".join((build.__doc__ or "").split())
        PROGRAMS[name] = Program(name, half, family, habit, change, build, what=what, **settings)
        return build

    return register


def healthy(family: str, half: str = DEVELOPMENT, **settings: Any) -> Callable[[Build], Build]:
    """Registers a program in which nothing is to be mended."""
    return pair("", family, "", half, **settings)


def several(family: str, fixes: dict[str, str], **settings: Any) -> Callable[[Build], Build]:
    """Registers a program with several habits; each fix is a variant of its own, and `after` has all of them."""
    return pair("", family, "; ".join(fixes.values()), SEVERAL, fixes=fixes, **settings)


def mends(variant: str, fix: str) -> bool:
    """Whether the variant mends this habit of a program with several; `a+b` mends two."""
    return variant == AFTER or fix in variant.split("+")

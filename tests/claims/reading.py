"""What a check has read so far, and what of it contradicts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contradiction:
    """Two statements that cannot both hold.

    Attributes:
        rule: that they break, in a few words.
        where: command, and place in its JSON or the sentence.
        said: the one.
        known: the other.
    """

    rule: str
    where: str
    said: str
    known: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.rule} · {self.where} · said {self.said} · known {self.known}"


@dataclass
class Reading:
    """What was read, and what of it contradicts.

    Attributes:
        sentences: lines of text, cells of tables and texts in JSON that hold a number with a unit, or a count.
        numbers: numbers that were compared: those in sentences, and those of the JSON that a check looked at.
        contradictions: found.
    """

    sentences: int = 0
    numbers: int = 0
    contradictions: list[Contradiction] = field(default_factory=list)

    def expect(self, holds: bool, rule: str, where: str, said: object, known: object) -> None:
        """Count one comparison, and keep it if it fails."""
        self.numbers += 1
        if not holds:
            self.contradictions.append(Contradiction(rule, where, str(said), str(known)))

    def same(self, rule: str, where: str, said: float, known: float, within: float = 0.0) -> None:
        """Both are one number, but for `within`."""
        self.expect(abs(said - known) <= within, rule, where, said, known)

    def at_most(self, rule: str, where: str, said: float, known: float, slack: float = 0.0) -> None:
        """The one is no larger than the other, but for `slack`."""
        self.expect(said <= known + slack, rule, where, said, known)

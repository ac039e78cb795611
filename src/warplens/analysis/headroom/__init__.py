"""The headroom: one budget from the measured step down to the machine's minimum for the same mathematics.

measured → without idle time → every kernel at its practical roof → without avoidable work → in the native precision of
the hardware → the limit. `work` determines the work of each piece, `shapes` reads its sizes, `levels` compares it with
the roofs (`warplens.analysis.roofs`), `budget` sums up. A new source of work goes into `work`, a new kind of avoidable
work into `levels.LOSSES`.
"""

from __future__ import annotations

from warplens.analysis.headroom.budget import GROUPS, PARTS, STEPS_DOWN, Headroom, headrooms
from warplens.analysis.headroom.groups import PIECES
from warplens.analysis.headroom.levels import LOSSES, loss_column
from warplens.analysis.headroom.work import KNOWN

__all__ = ["GROUPS", "KNOWN", "LOSSES", "PARTS", "PIECES", "STEPS_DOWN", "Headroom", "headrooms", "loss_column"]

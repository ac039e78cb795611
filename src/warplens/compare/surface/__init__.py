"""What a sweep shows as a whole: its two sides read from measurements, regimes, anomalies, and confounded axes.

Lives here: `sides` and `reading` (measurements to `Sweep`), `regimes` (what bounds each cell), `anomalies` and `trends`
(cells that break their trend by more than noise), `confounding` (axes whose effects the grid cannot tell apart). May
import `samples`, `statistics` and `sweep` of `warplens.compare`, `warplens.profile` and `warplens.errors`. A further
question about the grid as a whole becomes a module here; questions about one axis are `warplens.compare.crossover`'s.
"""

from warplens.compare.surface.anomalies import ANOMALY_SCHEMA, Anomalies, anomalies
from warplens.compare.surface.confounding import CONTRAST_SCHEMA, Confounded, Confounding, confounding
from warplens.compare.surface.reading import matched, sweep_of, wall_samples
from warplens.compare.surface.regimes import (
    REGIME_SCHEMA,
    REGIMES,
    CellRegime,
    Regime,
    cell_key,
    regime_frame,
    regimes,
)
from warplens.compare.surface.sides import same, side_of, written

__all__ = [
    "ANOMALY_SCHEMA",
    "CONTRAST_SCHEMA",
    "REGIMES",
    "REGIME_SCHEMA",
    "Anomalies",
    "CellRegime",
    "Confounded",
    "Confounding",
    "Regime",
    "anomalies",
    "cell_key",
    "confounding",
    "matched",
    "regime_frame",
    "regimes",
    "same",
    "side_of",
    "sweep_of",
    "wall_samples",
    "written",
]

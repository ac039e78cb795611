"""Which of two or more variants to run for a shape: fitted once from a sweep, asked at run time.

Lives here: `choosing` (a `Policy`, and how it chooses), `estimates` (times between measured points), `hostorwork` (the
model with physical terms behind one of these rules), `fitting`, `regret` (what wrong choices would cost), `files` (the
policy file, docs/reference/policy.md).

May import of `warplens.compare` only `samples`, `statistics` and `sweep`. A policy is asked inside programs that have
PyTorch and nothing else: no module here needs Polars, and all but the comparison of samples do without NumPy.
"""

from warplens.compare.policy.choosing import Axis, Choice, GridPoint, Policy, Side
from warplens.compare.policy.files import POLICY_SCHEMA_NAME, policy_of, read_policy, write_policy
from warplens.compare.policy.fitting import PointTimes, fit_points, fit_policy
from warplens.compare.policy.regret import CellRegret, Regret, regrets_on

__all__ = [
    "POLICY_SCHEMA_NAME",
    "Axis",
    "CellRegret",
    "Choice",
    "GridPoint",
    "PointTimes",
    "Policy",
    "Regret",
    "Side",
    "fit_points",
    "fit_policy",
    "policy_of",
    "read_policy",
    "regrets_on",
    "write_policy",
]

"""Which variant to run for which shape: fitted to a sweep, stored in a file, asked at run time.

`choosing` (what a policy is, and its answer for a shape), `fitting` (a policy from measurements), `files` (a policy as
JSON), `regret` (what its choices cost), `document` (for people), and `adaptive`: `AdaptiveModule`, which asks a policy
at run time and loads torch. A policy is asked inside programs that have PyTorch and nothing else: no module here but
`document` needs Polars, and all but the comparison of samples do without NumPy.
"""

from warplens.studies.policies.choosing import Axis, Choice, GridPoint, Policy, Side
from warplens.studies.policies.files import POLICY_SCHEMA_NAME, policy_of, read_policy, write_policy
from warplens.studies.policies.fitting import PointTimes, fit_points, fit_policy
from warplens.studies.policies.regret import CellRegret, Regret, regrets_on

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

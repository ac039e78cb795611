"""Which variant to run for which shape: fitted to a sweep, stored in a file, asked at run time.

`choosing` (what a policy is, and its answer for a shape), `fitting` (a policy from measurements), `files` (a policy as
JSON), `regret` (what its choices cost), `document` (for people), and `adaptive`: `AdaptiveModule`, which asks a policy
at run time and loads torch. A policy is asked inside programs that have PyTorch and nothing else: no module here but
`document` needs Polars, and all but the comparison of samples do without NumPy.
"""

from warplens.studies.policies.files import read_policy

__all__ = ["read_policy"]

"""Policies: which variant to run for which shape, fitted to a sweep, stored in a file, applied at run time.

`choosing` defines a policy and its choice for a shape, `fitting` derives one from measurements, `files` stores it as
JSON, `regret` holds the model of step times and the cost of choices, `document` renders it, and `adaptive` has
`AdaptiveModule`, which applies a policy at run time and loads torch. Policies are used in programs that have PyTorch
and nothing else: no module here but `document` needs Polars, and only the comparison of samples needs NumPy.
"""

from warplens.studies.policies.files import read_policy

__all__ = ["read_policy"]

"""Findings: what limits the analysed window, with evidence, a ceiling of the gain, remedies and a refuting experiment.

One rule per module. May import: `warplens.analysis`, `warplens.profile` and `warplens.errors`.
"""

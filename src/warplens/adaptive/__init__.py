"""The faster of several modules for the shape at hand, chosen at run time by a policy. Needs PyTorch.

Lives here: `module` (`AdaptiveModule`), `features` (from a shape to the settings that a policy chooses by), `sharing`
(one set of weights for all sides), `graphs` (each shape's chosen side as a CUDA graph).

May import `warplens.compare.policy` and `warplens.errors`; nothing here needs Polars or NumPy, so that a machine with
PyTorch alone can run it.
"""

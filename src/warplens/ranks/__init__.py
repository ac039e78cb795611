"""Many profiles of one distributed run: each file read and summarised on its own, in bounded memory.

The questions themselves are answered by `warplens.analysis.ranks`; here is what carries them to many files: worker
processes on this machine, or an existing Dask cluster. May import: `warplens.readers`, `warplens.analysis`,
`warplens.profile` and `warplens.errors`.
"""

"""Many profiles of one distributed run: each file read and summarised on its own, in bounded memory.

The questions themselves are answered by `warplens.analysis.ranks`; here is what carries them to many files: worker
processes on this machine (`local`), or an existing Dask cluster (`cluster`). Both run the same function on each file
(`files`), so that the results are the same. May import: `warplens.readers`, `warplens.analysis`, `warplens.profile` and
`warplens.errors`.
"""

from warplens.ranks.run import RanksRun, analyse_ranks

__all__ = ["RanksRun", "analyse_ranks"]

"""Many ranks of one distributed run: what each did, who communicated with whom, who waited for whom.

A file is reduced to one `RankSummary` a rank (`summary`), which is small whatever the file's size; everything across
ranks is then computed from summaries alone (`across`), so that hundreds of files never lie in memory together.

* per rank: `split` (one trace with several processes or devices → one trace a rank), `measures` (time by kind, overlap,
  steps), `kinds` (what a collective is, read from names; sizes; bandwidth formulas), `collectives` (every collective);
* across ranks: `identity` (which file is which rank), `matching` (the same collective on several ranks), `clocks`
  (one clock for all), `waits` (arrival, waiting, stragglers), `bandwidth`, `balance`.

Pure functions on the types of `warplens.profile`; reading files and spreading the work over processes is
`warplens.ranks`. A new question across ranks becomes a module here and a field of `across.RanksResult`.
"""

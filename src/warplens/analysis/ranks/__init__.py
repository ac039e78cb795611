"""Many ranks of one distributed run: their time budgets, their collectives, and the waits between them.

A file is reduced to one `RankSummary` per rank (`summary`), which is small whatever the file's size; everything across
ranks is then computed from summaries alone (`across`), so that hundreds of files are never in memory together.

* per rank: `measures` (one trace per rank, time by kind, overlap, steps), `collectives` (every collective, its kind and
  size), `summary`;
* across ranks: `clocks` (one clock for all), `balance` (even work, arrival and waiting), `across` (ranks of the files,
  matching of collectives, and all of it together).

Pure functions on the types of `warplens.profile`; reading files and spreading the work over processes is
`warplens.ranks`. A new question across ranks becomes a module here and a field of `across.RanksResult`.
"""

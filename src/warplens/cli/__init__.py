"""The command line: parses arguments, calls the library, and prints the result. It contains no analysis.

Modules: `main` (the program), `catalogue` (the list of commands, without importing them), `process` (exit codes,
errors and standard error), `memory` (`--memory`), `options` (shared arguments and options), `reading` (reads the paths
of commands on several files), `answer` (selects the window of a profile, and prints an answer in each format), and
`commands`.

A command that prints one table of a profile is a question in `warplens.report.questions`; any other command is a
function of its name in a module of `commands`. Both have a line in `catalogue.COMMANDS`.
"""

"""The command line: parses, calls the library, renders. No analysis lives here.

Lives here: `main` (the program), `catalogue` (the commands, known without importing them), `edge` (every way a run
can end, and standard error), `options` (arguments and options, declared in a line each), `answer` (from a path to the
part of a profile that is asked about, and from an answer to each of the four formats), and `commands`.

A question with a table as the answer is written in `warplens.report.questions` and gets a line in
`catalogue.COMMANDS`; any other command is a function of its name in a module of `commands`, and such a line.
"""

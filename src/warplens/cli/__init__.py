"""The command line: parses, calls the library, renders. No analysis lives here.

Lives here: `main` (the program and its entry point), `catalogue` (the list of commands, known without importing them),
`lazygroup` (imports a command when it runs), `edge` (every way a run can end, as an exit code and one line), `options`
(what several commands share), `messages` (standard error), `selection` (from a path to the part of a profile that is
asked about), `answer` (a table in the four output formats), and `commands`, one module a command.

May import: everything else of Warplens; nothing imports this. A new command becomes a module in `commands`, named after
it, with a function of the same name, and a line in `catalogue.COMMANDS`.
"""

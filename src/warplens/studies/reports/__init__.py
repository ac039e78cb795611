"""The documents of studies: token reduction, the language model, attention; and of the founding case's findings."""

"""The commands, each a function of the command's name: it parses arguments, calls the library, and prints the result.

A module is imported only when one of its commands runs, so it may import heavy modules at its top.
"""

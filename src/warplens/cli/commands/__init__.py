"""One module a command, named after it, with one function of the same name: parse, call the library, render.

A module here is imported only when its command runs, so that it may import what it needs at its head.
"""

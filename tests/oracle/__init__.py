"""Our statistics against those of NVIDIA's own `nsys stats`: an independent implementation of the same questions.

`captures.py` lists the profiles, `nsys_stats.py` runs and reads the reference tool, `collect_expected.py` stores its
answers in `expected/`, and `test_against_nsys.py` compares: with the stored answers everywhere, and directly where the
tool is installed.
"""

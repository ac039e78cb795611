"""The faster of two modules for the shape at hand, chosen at run time. Needs PyTorch."""

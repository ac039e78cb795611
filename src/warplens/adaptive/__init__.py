"""The faster of two modules for the shape at hand, chosen at run time; and proof of what choosing costs. Needs PyTorch."""

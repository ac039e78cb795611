"""Programs in pairs: one habit that an expert mends in a line or two, and the same program with it mended."""

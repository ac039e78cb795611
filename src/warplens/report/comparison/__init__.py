"""Why one profile is slower than another, as a document."""

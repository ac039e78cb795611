"""The (a) to (e) questions of a grid of profiles: models times context lengths."""

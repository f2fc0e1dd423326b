"""Building blocks that model families and draft networks share."""

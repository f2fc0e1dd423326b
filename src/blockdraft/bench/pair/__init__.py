"""A target and a drafter: what their files say about each other, and what only measuring tells."""

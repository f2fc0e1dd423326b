"""Public helpers for tests: tiny models, scripted drafters, distribution checks."""

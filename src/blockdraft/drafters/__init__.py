"""Everything that proposes tokens, each behind the contract in `base`."""

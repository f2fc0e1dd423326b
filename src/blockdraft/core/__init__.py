"""Pure mathematics of speculative decoding on tensors: sampling, verification, statistics. Knows no model."""

"""How tensors are computed where it is not plain torch: packed weights and native CPU kernels. Knows no model."""

"""Training drafters: data, the features of the target, objectives, the trainer, export."""

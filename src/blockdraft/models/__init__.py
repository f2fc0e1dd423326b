"""Language models that can be targets: how they are found, loaded and run."""

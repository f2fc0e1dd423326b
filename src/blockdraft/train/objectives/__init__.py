"""What a drafter is trained to do: one module per method."""

"""What runs Gleaner: the local stack, the demo and its model."""

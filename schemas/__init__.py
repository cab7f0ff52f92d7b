"""The contracts that the producer and the workers share."""

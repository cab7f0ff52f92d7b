"""Benchmarks of the whole product and of its parts; figures are kept in ops/BENCHMARKS.md."""

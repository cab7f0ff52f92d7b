"""Structured output without a grammar engine: label schemas as tables over a tokenizer's vocabulary."""

"""Structured output without a grammar engine: label schemas as tables over a tokenizer's vocabulary."""

#: The key among a request's extra arguments under which it names its label schema's number.
ARGUMENT = "gleaner_decoder"

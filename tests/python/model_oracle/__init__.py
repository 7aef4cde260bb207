"""Compares `attnsmith plan --model` with what reaches attention in transformers' own code."""

"""The plain functions as operators of torch, in Python and in C++, and whether a call needs them."""

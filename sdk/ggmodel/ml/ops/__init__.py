"""The ops, grouped by theme: each module holds table entries and the methods that record them."""

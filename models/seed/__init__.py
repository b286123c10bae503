"""Seed: the architecture `seed_oss` (Seed-OSS)."""

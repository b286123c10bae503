"""Differences between Linux, macOS and Windows: the same few functions everywhere.

Each decides by `sys.platform` once, when its module is imported, or at a call that is rare.
Features that Linux alone has (control groups, advice about memory, waiting times of threads) stay
where they are used, and do nothing elsewhere. docs/platforms.md lists what is tested.
"""

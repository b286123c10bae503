"""The size of the SDK, what is meant to become of it, and ceilings that hold it.

    python -m tools.house              all numbers, the measured ones included (`make house`)
    python -m tools.house --static     without those that run a model
    python -m tools.house --pairs      the pairs of equal functions and classes of models, too
    python -m tools.house --check      fail where a number is above its ceiling (`make lint`)
    python -m tools.house --lower      lower the ceilings to the numbers reached

`ceilings.json` beside this file has the ceilings.
"""

"""The batching lab: static, continuous and chunked batching of one engine, in exact integer microseconds.

`workload` makes the load, `scheduler` runs it, `metrics` reads the result, `golden` holds runs without random numbers.
"""

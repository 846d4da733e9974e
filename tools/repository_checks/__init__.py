"""Checks of the repository as a whole, run by `make verify-repository`.

Each check is a function from a `Tree` (the root folder and the files that git does not ignore) to the sentences that say
what is wrong and what to do; an empty list is a pass. They read files and write none. `adr_index` alone writes: it is a
generator, run by `make generate`.
"""

"""Loaders of public traces, and what a run replays out of them.

`reading` opens files and decides what a broken line does; `azure`, `mooncake` and `agentic` each know one format;
`replay` turns rows into prompts of exact token ids; `workload` draws a seeded workload from a sample. Nothing here sends a request.
"""

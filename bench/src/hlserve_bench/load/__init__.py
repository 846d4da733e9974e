"""Load over HTTP through the official `openai` SDK, in a process of its own.

`plan` says what to run, `chat` is the open loop, `agents` the closed one, `call` is one streamed request, `run` puts them together,
`python -m hlserve_bench.load` is the process. Latencies count from the scheduled time; how late the client was is in every record.
"""

"""The router: one process between clients and engine pools that classifies, admits, picks, relays and accounts.

`proxy` is the way of a request; `relay` moves its bytes; `asgi` is the face on any ASGI server; `upstream` the engine
side. `Proxy` owns all mutable state, on one event loop. What a routing table holds, header names and reasons are declared
in `hlserve_api`, not here.
"""

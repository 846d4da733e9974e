"""Pure models of serving capacity: step costs, a batching simulator, sizing, and the way from an SLO to engine flags.

No I/O, no clock, no randomness of its own (a caller passes a `random.Random` in), no logging. The simulated engine drives
`hlserve_capacity.engine` in real time, the demo's virtual arms drive the same code in virtual time.
"""

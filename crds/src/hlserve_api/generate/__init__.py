"""Generation of everything that is made from the contract: CRDs, their chart copy, JSON schemas and reference pages.

Run as `python -m hlserve_api.generate [--check]`. Nothing of `hlserve_api` imports this package but `admission`, which needs the
schemas in memory. Programs never run it; `make generate` does.
"""

"""Helpers for tests against a router: a scripted engine on a real socket, builders of tables and keyrings, a running router."""

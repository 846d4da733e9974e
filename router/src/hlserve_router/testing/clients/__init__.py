"""Real clients against a real router: drivers that run inside each client's environment, situations, and what is expected."""

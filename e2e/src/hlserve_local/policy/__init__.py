"""What the router's policies are worth: its own pipeline on simulated engines in virtual time, and against another router on the clock."""

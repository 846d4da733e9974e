"""How a ServingPool becomes pods and stays so: `plan_pool` decides from one frozen observation what to write. Pure: no I/O, no clock."""

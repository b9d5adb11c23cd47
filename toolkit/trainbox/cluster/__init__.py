"""How the hosts of a job come together."""

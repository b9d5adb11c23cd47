"""The local cluster: hosts of a job as processes or as containers of this machine."""

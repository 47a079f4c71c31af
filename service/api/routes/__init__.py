"""One router a resource: translate HTTP to `service.jobs` and back, nothing else."""

"""One job, from a request to artifacts and a report."""

"""What runs in such processes, each as `python -m`."""

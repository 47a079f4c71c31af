"""What a hardware spec probably did not mean."""

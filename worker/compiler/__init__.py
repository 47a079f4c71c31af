"""The compiler, pure: no database, broker, network, environment or clock.  See README.md here."""

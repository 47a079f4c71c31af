"""Workers: adapters between the queue and two pure libraries, the compiler and the simulator."""

"""KAPLA's tensor-centric directives: a nest as text that can be read, changed and run again."""

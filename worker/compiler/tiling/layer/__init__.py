"""One layer on some cores: a nest or a chain, by the best of its tilings."""

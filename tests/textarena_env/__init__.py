"""Where OpenEnv's package of the same name would be, which is on no index: the same messages, about the real games."""

"""The fault campaign: a real service under load while all that it stands on breaks, by a seed.

`servers` and `proxy` are what breaks, `site` one deployment of it all, `chaos` what breaks when,
`load` the users, `audit` what must hold afterwards.  `__main__` is the command.
"""

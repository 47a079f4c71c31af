"""The fault campaign: a real service under load while all that it stands on breaks, by a seed.

`servers` and `proxy` are what breaks, `site` one deployment of it all, `chaos` what breaks when,
`work` what is asked for and `load` the users, `usual` how it ends undisturbed; `audit`,
`sweep_audit`, `left` and `subscriber` what must hold afterwards.  `__main__` is the command.
"""

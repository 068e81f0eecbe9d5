"""Programs of stop-time checks: what an agent runs on a machine that does not train. Import torch.

Run as `python -m everstep.selfcheck SETTINGS` (`core.checks.ProgramSettings`), once a GPU or rank.
"""

"""Scripts that run in peers' own environments, with the peers' libraries and without Outrider.

They are started as `python -m workers.NAME` with the folder above on PYTHONPATH, so they may import
each other and what their environment holds, and nothing else.
"""

"""How much memory a recorded program needs: caps found by replaying it, and larger batches by scaling it.

:mod:`_caps` replays under caps; :mod:`_runs` and :mod:`_align` find what is the same in runs with different batches;
:mod:`_model` says how each allocation grows; :mod:`_batches` predicts. :func:`arena.fit` puts them together.
"""

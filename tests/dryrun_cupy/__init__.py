"""Tests of CuPy in dry runs. They are for Linux, and need CuPy, pip and a C++ compiler."""

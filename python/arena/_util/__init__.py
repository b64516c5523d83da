"""What every part needs: arguments, sizes, files, the environment, imports that wait, and the end of the process."""

"""What `efhc bench` measures: our iterations against the plain per-device PyTorch loop, in one process, by turns."""

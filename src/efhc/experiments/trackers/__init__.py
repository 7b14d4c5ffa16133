"""Trackers write what a run evaluates to TensorBoard, MLflow or W&B. A new tracker is one class in one file."""

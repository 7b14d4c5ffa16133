"""What the theorems promise: bounds on errors and gradients, step-size limits, rates."""
